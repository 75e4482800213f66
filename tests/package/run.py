#!/usr/bin/env python3
"""Installs headwise static and shared, moves the tree elsewhere, and builds a C++ and a C program against it, by find_package
and by pkg-config, and programs of Rust and Java against the shared one; makes the wheel and imports it from where pip puts it; installs the Debian package and takes it out again. Says `name: passed` or `name: failed` for each.

Usage: run.py ROOM PYTHON"""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BINDINGS = ROOT / "examples/bindings"
JOBS = str(len(os.sched_getaffinity(0)))
failures = 0


def run(*command, **more):
    done = subprocess.run([str(c) for c in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def check(name, body):
    global failures
    try:
        body()
        print(f"{name}: passed")
    except (RuntimeError, AssertionError) as fault:
        failures += 1
        print(f"{fault}\n{name}: failed")


def beside(room, kind):
    """A build folder as deep in the tree as the release build's, and below with its flags: ccache has the objects then."""
    return room.parent / f"{room.name}-{kind}"


def install(room, kind):
    """Returns where the tree lies after it was moved: nothing in it may remember the first place."""
    build, first, moved = beside(room, kind), room / f"first-{kind}", room / f"moved-{kind}"
    for old in (first, moved):
        shutil.rmtree(old, ignore_errors=True)
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DHEADWISE_CLI=OFF",
        f"-DBUILD_SHARED_LIBS={'ON' if kind == 'shared' else 'OFF'}", f"-DCMAKE_INSTALL_PREFIX={first}",
        "-DCMAKE_INSTALL_LIBDIR=lib", "-DHEADWISE_WERROR=ON")
    run("cmake", "--build", build, "-j", JOBS)
    run("cmake", "--install", build)
    first.rename(moved)
    return moved


def ran_well(program, version, env=None):
    out = run(program, env={**os.environ, **(env or {})})
    assert out.startswith(version + " "), f"{program} says {out!r}, not version {version}"


def by_cmake(tree, room, kind, version):
    build = room / f"consumer-{kind}"
    shutil.rmtree(build, ignore_errors=True)
    run("cmake", "-S", HERE, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={tree}")
    run("cmake", "--build", build)
    ran_well(build / "consumer_cpp", version)
    if (tree / "lib/cmake/headwise/headwise-text-targets.cmake").exists():
        ran_well(build / "consumer_text", version)


def by_cmake_in_c(tree, room, kind, version):
    build = room / f"consumer-c-{kind}"
    shutil.rmtree(build, ignore_errors=True)
    run("cmake", "-S", HERE / "c_alone", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={tree}")
    run("cmake", "--build", build)
    ran_well(build / "consumer_c", version)


def by_pkg_config(tree, room, kind, version):
    env = {**os.environ, "PKG_CONFIG_PATH": str(tree / "lib/pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "headwise", env=env).split()
    assert run("pkg-config", "--modversion", "headwise", env=env).strip() == version
    for compiler, source in (("g++ -std=c++20", "consumer.cc"), ("gcc -std=c11", "consumer.c")):
        program = room / f"pkg_{kind}_{source.replace('.', '_')}"
        run(*compiler.split(), HERE / source, "-o", program, *flags)
        ran_well(program, version, {"LD_LIBRARY_PATH": str(tree / "lib")})
    if (tree / "lib/cmake/headwise/headwise-text-targets.cmake").exists():
        assert run("pkg-config", "--modversion", "headwise-text", env=env).strip() == version
        flags = run("pkg-config", "--cflags", "--libs", "headwise-text", env=env).split()
        program = room / f"pkg_{kind}_consumer_text"
        run("g++", "-std=c++20", HERE / "consumer_text.cc", "-o", program, *flags)
        ran_well(program, version, {"LD_LIBRARY_PATH": str(tree / "lib")})


def cuda_is_found_where_it_is(tree, room, version):
    """No nvcc is asked here: a tree gets the two files that an install with HEADWISE_CUDA adds, made by hand."""
    project = room / "with-cuda"
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(other)\nfind_package(headwise 0.1 REQUIRED COMPONENTS cuda)\n"
        "get_target_property(place headwise::cuda IMPORTED_LOCATION)\nmessage(STATUS \"place ${place}\")\n")
    configure = ("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={tree}")
    try:
        run(*configure)
    except RuntimeError as refused:
        assert "cuda" in str(refused), refused
    else:
        raise AssertionError("find_package(headwise COMPONENTS cuda) took a tree without it")
    targets = tree / "lib/cmake/headwise/headwise-cuda-targets.cmake"
    targets.write_text("add_library(headwise::cuda SHARED IMPORTED)\nset_target_properties(headwise::cuda PROPERTIES"
                       ' IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/../../libheadwise_cuda.so")\n')
    made = (ROOT / "cmake/headwise-cuda.pc.in").read_text()
    for word, value in (("@pc_prefix@", "../.."), ("@CMAKE_INSTALL_LIBDIR@", "lib"), ("@PROJECT_VERSION@", version)):
        made = made.replace(word, value)
    package = tree / "lib/pkgconfig/headwise-cuda.pc"
    package.write_text(made)
    try:
        assert "libheadwise_cuda.so" in run(*configure)
        env = {**os.environ, "PKG_CONFIG_PATH": str(tree / "lib/pkgconfig")}
        assert "-lheadwise" in run("pkg-config", "--libs", "headwise-cuda", env=env)
        assert run("pkg-config", "--variable=library", "headwise-cuda", env=env).strip().endswith("lib/libheadwise_cuda.so")
    finally:
        targets.unlink()
        package.unlink()


def other_minor_is_refused(tree, room):
    project = room / "other-minor"
    project.mkdir(exist_ok=True)
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(other)\nfind_package(headwise 0.2 REQUIRED)\n")
    try:
        run("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={tree}")
    except RuntimeError:
        return
    raise AssertionError("find_package(headwise 0.2) took version 0.1")


def headers_stand_alone(tree):
    for header in sorted((tree / "include").rglob("*.h")):
        name = header.relative_to(tree / "include").as_posix()
        language = ["gcc", "-std=c11", "-xc"] if name.startswith("headwise/c/") else ["g++", "-std=c++20", "-xc++"]
        run(*language, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{tree / 'include'}", "-", input=f'#include "{name}"\n')


def only_public_headers(tree):
    """What is installed is what cmake/public_headers.cmake lists, each head, and the two files CMake writes."""
    lines = (ROOT / "cmake/public_headers.cmake").read_text().splitlines()
    listed = {name for line in lines if not line.startswith("#") for name in re.findall(r"headwise/[\w/]+\.h", line)}
    if not (tree / "lib/cmake/headwise/headwise-text-targets.cmake").exists():
        listed = {name for name in listed if (tree / "include" / name).exists() or not re.match("headwise/(text|intent|decoder)/", name)}
    heads = {f"headwise/heads/{f.name}" for f in (ROOT / "headwise/heads").glob("*.h") if "static_assert(Head<" in f.read_text()}
    wanted = listed | heads | {"headwise/base/version.h", "headwise/heads/list.inc"}
    found = {f.relative_to(tree / "include").as_posix() for f in (tree / "include").rglob("*") if f.is_file()}
    assert found == wanted, f"installed but not public: {sorted(found - wanted)}; public but not installed: {sorted(wanted - found)}"


def hides_what_is_inside(tree, version):
    library = tree / f"lib/libheadwise.so.{version}"
    symbols = run("nm", "-DC", "--defined-only", library)
    inside = [line for line in symbols.splitlines() if re.search(r"headwise::(cpu|ref)::", line)]
    assert not inside, "exported, but no user's business:\n" + "\n".join(inside[:20])
    for name in ("headwise::AttentionPlan::run", "hw_attention_run"):
        assert name in symbols, f"{name} is not exported"
    short = ".".join(version.split(".")[:2])
    assert f"libheadwise.so.{short}" in run("readelf", "-d", library), f"the soname is not libheadwise.so.{short}"
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
    others = [n for n in needed if not re.match(r"(libstdc\+\+|libm|libgcc_s|libc|libpthread|ld-linux[\w-]*)\.so", n)]
    assert not others, f"the library needs more than std and threads: {others}"


def no_path_is_remembered(tree, room):
    for file in (tree / "lib").rglob("*"):
        if file.suffix in {".cmake", ".pc"}:
            assert str(room) not in file.read_text(), f"{file.name} remembers where it was made"


def wheel_works(room, python, version):
    """The module as pip builds it, with everything Python brings but the build tree out of sight."""
    site = room / "site"
    shutil.rmtree(site, ignore_errors=True)
    run(python, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--target", site,
        f"--config-settings=build-dir={beside(room, 'wheel')}", "--config-settings=cmake.define.HEADWISE_WERROR=ON", ROOT,
        env={**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": JOBS, "CC": "cc", "CXX": "c++"})
    env = {**os.environ, "PYTHONPATH": str(site)}
    out = run(python, "-m", "headwise.selftest", env=env, cwd=room)
    assert out.startswith(f"headwise {version} ") and " 0 failed" in out, out
    assert list(site.glob("headwise/py.typed")) and list(site.glob("headwise/*.pyi")), "the wheel is not typed"


def whole_wheel_works(room, python, version):
    """The wheel of make wheel: tag, size, what is inside, and the program."""
    site, made = room / "site-whole", room / "dist"
    for old in (site, made):
        shutil.rmtree(old, ignore_errors=True)
    run(ROOT / "tools/wheel/make_wheel.sh", made, env={**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": JOBS, "CC": "cc", "CXX": "c++",
                                                 "WHEEL_SETTINGS": "cmake.define.HEADWISE_WERROR=ON"})
    (wheel,) = made.glob(f"headwise-{version}-*.whl")
    (source,) = made.glob(f"headwise-{version}.tar.gz")
    assert "-cp310-abi3-manylinux" in wheel.name and wheel.stat().st_size < 15e6, f"{wheel.name} has {wheel.stat().st_size} bytes"
    names = zipfile.ZipFile(wheel).namelist()
    for name in (r".*/licenses/LICENSE", r"headwise/py\.typed", r"headwise/_core\.pyi", r"headwise/bin/headwise"):
        assert any(re.fullmatch(name, found) for found in names), f"the wheel has no {name}"
    assert any(name.endswith("/pyproject.toml") for name in tarfile.open(source).getnames()), "the sdist builds nothing"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, wheel)
    env = {**os.environ, "PYTHONPATH": str(site)}
    assert " 0 failed" in run(python, "-m", "headwise.selftest", env=env, cwd=room)
    assert version in run(site / "bin/headwise", "--version", env=env, cwd=room)
    for number in range(10, 16):
        works_in_a_fresh_venv(room, f"python3.{number}", wheel, version)
    if os.geteuid() == 0:  # nobody else may change the root
        said = run(ROOT / "tools/wheel/try_bare.sh", wheel)
        assert " 0 failed" in said and said.rstrip().endswith(version), said
    builds_with_pip_alone(room, source)


def wheel_of_the_other_machine_works(room, version):
    """Cross compiled; its selftest and its program run under qemu-user."""
    made, other = room / "dist-other", "aarch64" if platform.machine() == "x86_64" else "x86_64"
    shutil.rmtree(made, ignore_errors=True)
    run(ROOT / "tools/wheel/make_wheel.sh", made, other, env={**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": JOBS,
                                                        "WHEEL_SETTINGS": "cmake.define.HEADWISE_WERROR=ON"})
    (wheel,) = made.glob(f"headwise-{version}-cp310-abi3-manylinux*_{other}.whl")
    said = run(ROOT / "tools/wheel/try_wheel.sh", wheel)
    assert " 0 failed" in said and said.rstrip().endswith(version), said
    assert wheel.stat().st_size < 15e6, f"{wheel.name} has {wheel.stat().st_size} bytes"


def builds_with_pip_alone(room, source):
    """The sdist in a fresh venv: pip brings what the build needs, and a compiler is here."""
    venv = room / "venv-sdist"
    shutil.rmtree(venv, ignore_errors=True)
    run("/usr/bin/python3", "-m", "venv", venv)
    run(venv / "bin/pip", "install", "--quiet", "--config-settings=build-dir=build/sdist", source,  # as deep as others: ccache
        "--config-settings=cmake.define.HEADWISE_WERROR=ON",
        env={**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": JOBS, "CC": "cc", "CXX": "c++"})
    assert " 0 failed" in run(venv / "bin/python", "-m", "headwise.selftest", cwd=room)


def works_in_a_fresh_venv(room, name, wheel, version):
    """With what the wheel asks for, from the index; a name may belong to no Python here."""
    venv = room / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    if not shutil.which(name) or subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode:
        return
    run(name, "-m", "venv", venv)
    run(venv / "bin/pip", "install", "--quiet", wheel)
    assert " 0 failed" in run(venv / "bin/python", "-m", "headwise.selftest", cwd=room), name
    assert version in run(venv / "bin/headwise", "--version", cwd=room), name


def tool(name):
    """Where a tool chain of another language lies; None says why there is no test, and under CI it has to be there."""
    found = shutil.which(name)
    if not found:
        print(f"there is no {name}; ./setup.sh languages installs it")
        assert os.environ.get("CI") != "true", f"{name} is missing"
    return found


def said_hello(*command, tree, room):
    out = run(*command, env={**os.environ, "LD_LIBRARY_PATH": f"{tree / 'lib'}:{room}"})
    assert out == (BINDINGS / "hello.txt").read_text(), f"{command[0]} says {out!r}"


def in_rust(tree, room):
    if rustc := tool("rustc"):
        program = room / "hello_rust"
        run(rustc, "--edition", "2021", "-D", "warnings", "-L", tree / "lib", BINDINGS / "hello.rs", "-o", program)
        said_hello(program, tree=tree, room=room)


def in_java(tree, room):
    if javac := tool("javac"):
        include = pathlib.Path(javac).resolve().parent.parent / "include"
        run("gcc", "-std=c11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{include}", f"-I{include / 'linux'}",
            f"-I{tree / 'include'}", BINDINGS / "hello_jni.c", "-o", room / "libhello_jni.so", f"-L{tree / 'lib'}", "-lheadwise")
        run(javac, "-Xlint:all", "-Werror", "-d", room, BINDINGS / "Hello.java")
        said_hello("java", f"-Djava.library.path={room}", "-cp", room, "Hello", tree=tree, room=room)


def deb_comes_and_goes(room, version):
    """The Debian package of the release build: put into an empty root, run there, and taken out without a trace."""
    release, made, root = ROOT / "build/release", room / "deb", room / "deb-root"
    for old in (made, root):
        shutil.rmtree(old, ignore_errors=True)
    run("cmake", "--build", release, "--target", "headwise_cli", "headwise_library", "headwise_text_library")
    run("cpack", "-B", made, cwd=release)
    (package,) = made.glob(f"headwise_{version}_*.deb")
    assert re.search(r"Depends:.*libicu", run("dpkg-deb", "-I", package)), "it does not say what it needs"
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"):
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg = ("dpkg", f"--root={root}", "--force-depends", "--force-not-root", "--force-script-chrootless", "--log=/dev/null")
    run(*dpkg, "-i", package)
    assert version in run(root / "usr/bin/headwise", "--version")
    for name in ("man/man1/headwise.1.gz", "bash-completion/completions/headwise", "zsh/vendor-completions/_headwise",
                 "fish/vendor_completions.d/headwise.fish", "doc/headwise/LICENSE"):
        assert (root / "usr/share" / name).stat().st_size > 100, name
    run(*dpkg, "-r", "headwise")
    left = [p for p in root.rglob("*") if p.is_file() and "var/lib/dpkg" not in str(p)]
    assert not left, f"left behind: {left}"


def main(room, python):
    room = pathlib.Path(room).resolve()
    room.mkdir(parents=True, exist_ok=True)
    version = re.search(r"project\(headwise VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    trees = {}
    for kind in ("static", "shared"):
        check(f"install {kind}", lambda: trees.update({kind: install(room, kind)}))
        if kind not in trees:
            continue
        check(f"find_package {kind}", lambda: by_cmake(trees[kind], room, kind, version))
        check(f"find_package in C {kind}", lambda: by_cmake_in_c(trees[kind], room, kind, version))
        check(f"pkg-config {kind}", lambda: by_pkg_config(trees[kind], room, kind, version))
        check(f"relocatable {kind}", lambda: no_path_is_remembered(trees[kind], room))
    if len(trees) == 2:
        check("another minor version is refused", lambda: other_minor_is_refused(trees["static"], room))
        check("cuda is a component where it is", lambda: cuda_is_found_where_it_is(trees["shared"], room, version))
        check("each header compiles alone", lambda: headers_stand_alone(trees["static"]))
        check("only public headers are installed", lambda: only_public_headers(trees["static"]))
        check("Rust", lambda: in_rust(trees["shared"], room))
        check("Java", lambda: in_java(trees["shared"], room))
        check("hidden inside", lambda: hides_what_is_inside(trees["shared"], version))
    check("deb", lambda: deb_comes_and_goes(room, version))
    check("wheel", lambda: wheel_works(room, pathlib.Path(python).absolute(), version))
    if os.environ.get("HEADWISE_SLOW"):
        check("wheel with the program", lambda: whole_wheel_works(room, pathlib.Path(python).absolute(), version))
        check("wheel of the other machine", lambda: wheel_of_the_other_machine_works(room, version))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
