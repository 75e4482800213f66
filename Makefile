# Each target can be the first command on a bare Debian 12: it installs what is missing, builds and runs.
.PHONY: demo tour test slow bench check gpu asan tsan fuzz wheel format
RUN = python3 tools/run_all.py

demo:
	@./setup.sh
	@./tools/build.sh headwise_cli
	@./tools/demo.sh

tour:
	@./setup.sh demo
	@./tools/build.sh headwise_python headwise_cli
	@./tools/tour.sh

test:
	@./setup.sh python
	@$(RUN) test

slow:
	@./setup.sh python
	@HEADWISE_SLOW=1 $(RUN) test

bench:
	@./setup.sh python
	@./benchmarks/run.sh $(BENCH)

check:
	@./setup.sh python
	@$(RUN) check

# On a machine with an NVIDIA GPU, nvcc and a Python with torch: builds, checks, measures, writes one log.
gpu:
	@./tools/gpu_run.sh $(GPU)

asan:
	@./setup.sh
	@$(RUN) asan

tsan:
	@./setup.sh
	@$(RUN) tsan

fuzz:
	@./setup.sh
	@$(RUN) fuzz

wheel:
	@./setup.sh demo
	@.venv/bin/python -m pip wheel --quiet --no-build-isolation --no-deps --config-settings=build-dir=build/wheel -w dist .
	@ls dist

format:
	@clang-format-14 -i $$(find headwise tests examples python -name "*.h" -o -name "*.cc" -o -name "*.c")
