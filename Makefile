# Each target can be the first command on a bare Debian 12: it installs what is missing, builds and runs.
.PHONY: demo tour chat test slow bench check gpu asan tsan fuzz wheel wheel-cuda deb docs format
RUN = python3 tools/run_all.py

# What cmake --install puts in its place; the objects are those of the program.
INSTALLED = headwise_cli headwise_library headwise_text_library
TESTED = build python torch docs deb wheel languages tests browser cross

demo:
	@./setup.sh build
	@./tools/build.sh $(INSTALLED)
	@./tools/demo.sh

tour:
	@./setup.sh build python
	@./tools/build.sh headwise_python $(INSTALLED)
	@./tools/tour.sh

chat:
	@./setup.sh build python
	@./tools/build.sh headwise_cli
	@./tools/chat.sh $(CHAT)

test:
	@./setup.sh $(TESTED)
	@$(RUN) test

slow:
	@./setup.sh $(TESTED)
	@HEADWISE_SLOW=1 $(RUN) test
	@$(RUN) memory

bench:
	@./setup.sh build python torch tests
	@./benchmarks/run.sh $(BENCH)

check:
	@./setup.sh build python torch tests checks
	@$(RUN) check

# On a machine with an NVIDIA GPU, nvcc and a Python with torch: builds, checks, measures, writes one log.
gpu:
	@./tools/gpu_run.sh $(GPU)

asan:
	@./setup.sh build tests
	@$(RUN) asan

tsan:
	@./setup.sh build tests
	@$(RUN) tsan

fuzz:
	@./setup.sh build checks
	@$(RUN) fuzz

# MACHINE=aarch64: the wheel of the other machine, by the cross compiler.
wheel:
	@./setup.sh build python wheel $(if $(MACHINE),cross)
	@./tools/wheel/make_wheel.sh dist $(MACHINE)

# headwise-cuda: libheadwise_cuda.so alone, built by nvcc; LIBRARY=FILE takes one that is there.
wheel-cuda:
	@./setup.sh build
	@python3 tools/wheel/make_cuda_wheel.py $(if $(LIBRARY),--library $(LIBRARY))

deb:
	@./setup.sh build deb
	@./tools/build.sh $(INSTALLED)
	@cd build/release && cpack -B ../../dist > cpack.log || { cat cpack.log; exit 1; }
	@rm -rf dist/_CPack_Packages; ls dist/*.deb

# The site: build/site/index.html.
docs:
	@./setup.sh python docs
	@.venv/bin/python tools/make_site.py

format:
	@./setup.sh checks
	@clang-format-14 -i $$(find headwise tests examples python -name "*.h" -o -name "*.cc" -o -name "*.c")
