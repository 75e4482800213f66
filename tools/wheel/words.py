"""What a wheel made by hand needs: the tag of the systems its libraries run on, its metadata, and the list of its files."""
import base64
import hashlib
import re
import subprocess
import zipfile

# The newest names of libstdc++ that a system of each manylinux tag brings (auditwheel's policies), by the glibc of the tag.
LIBSTDCXX = {(3, 4, 24): (2, 28), (3, 4, 28): (2, 31), (3, 4, 29): (2, 34), (3, 4, 30): (2, 35), (3, 4, 32): (2, 38), (3, 4, 33): (2, 39)}
MACHINES = {"X86-64": "x86_64", "AArch64": "aarch64"}
OLDEST = (2, 17)
STAMP = (2026, 1, 1, 0, 0, 0)  # two wheels of the same files are the same file


def readelf(*words):
    return subprocess.run(["readelf", *map(str, words)], check=True, capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout


def newest(name, text):
    found = [tuple(map(int, version.split("."))) for version in re.findall(rf"\b{name}_(\d+(?:\.\d+)+)", text)]
    return max(found, default=(0,))


def platform_tag(libraries):
    """manylinux_2_28_x86_64: the oldest glibc that has every symbol these libraries ask for, and their machine."""
    glibc, machines = OLDEST, set()
    for library in libraries:
        header = readelf("-hW", library)
        machine = re.search(r"Machine:\s+(.*)", header)[1]
        machines.add(next((tag for word, tag in MACHINES.items() if word in machine), machine))
        needs = readelf("-VW", library)
        needs = needs.partition("ersion needs section")[2]
        glibc = max(glibc, newest("GLIBC", needs)[:2])
        wanted = newest("GLIBCXX", needs)
        if wanted > max(LIBSTDCXX):
            raise SystemExit(f"{library} asks for GLIBCXX_{'.'.join(map(str, wanted))}, which no known tag brings; add it to LIBSTDCXX")
        glibc = max(glibc, next((tag for names, tag in sorted(LIBSTDCXX.items()) if wanted <= names), OLDEST) if wanted > (3, 4, 19) else OLDEST)
    if len(machines) != 1:
        raise SystemExit(f"the libraries are of {' and '.join(sorted(machines)) or 'no machine'}; a wheel has one")
    return f"manylinux_{glibc[0]}_{glibc[1]}_{machines.pop()}"


def metadata(fields, text):
    return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + text


def write_wheel(folder, name, version, tag, files, about):
    """files: contents by path inside the wheel. about: the text of METADATA. Returns the wheel's path."""
    info = f"{name}-{version}.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = about.encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: headwise\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    rows = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, STAMP)
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return wheel
