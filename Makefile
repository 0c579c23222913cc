# The commands of README and CONTRIBUTING. Each runs the setup that it needs and skips completed steps.
# Variables: JOBS, the number of parallel compilers or tests.

# Compiling a source that includes ATen needs up to 2 GB.
JOBS ?= $(shell awk '/^MemAvailable/ {m = int($$2 / 2000000)} END {"nproc" | getline n; \
	j = m < n ? m : n; print j < 1 ? 1 : j}' /proc/meminfo)
# One test more than cores, because some wait for deadlines.
TEST_JOBS = $(shell expr $(JOBS) + 1)
SOURCES = $(shell find shardwise python tests tools examples benchmarks cmake -name '*.h' -o -name '*.cpp' -o -name '*.cu')
CMAKE = .venv/bin/cmake
CTEST = .venv/bin/ctest
# Several tests run at once: a thread that spins at the end of a parallel loop would take a core from another test, which
# tripled the time of some.
test test-room test-full: export OMP_WAIT_POLICY = passive
# Prints the number of combinations that the tests covered.
SAY_COVERED = sed -n 's/^covered: //p' build/Testing/Temporary/LastTest.log

.DEFAULT_GOAL := help
.PHONY: help setup setup-test build build-tests build-fuzz planner cuda cuda-all test-gpu bench-gpu install demo test check-room test-room test-full test-planner test-report figures \
	curves test-mutations \
	test-generated-mutations docs bench format check-format test-tidy test-asan test-fuzz test-tsan coverage clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup:
	@tools/setup

setup-test:
	@tools/setup test

build: setup ## build the program, build/shardwise
	@$(CMAKE) --preset release >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target shardwise

# The compiled planner is linked by a script of node, which looks for Debian's modules only if told to.
planner: export NODE_PATH = /usr/share/nodejs
planner: setup ## build the page of `shardwise plan --html`, build/planner.html, with emscripten
	@tools/setup planner
	@$(CMAKE) -S tools/planner -B build/planner -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/.venv/bin/ninja >/dev/null
	@$(CMAKE) --build build/planner -j $(JOBS)

cuda: ## compile the GPU kernels for an H200, build/cuda (docs/gpu-kernels.md)
	@tools/setup cuda
	@$(CMAKE) --preset release >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target cuda_kernels

cuda-all: ## compile the GPU kernels for all supported GPUs, build-cuda/cuda
	@tools/setup cuda
	@$(CMAKE) --preset release -B build-cuda "-DSHARDWISE_CUDA_ARCHITECTURES=sm_80;sm_90;sm_100;compute_100" >/dev/null
	@$(CMAKE) --build build-cuda -j $(JOBS) --target cuda_kernels
	@for arch in sm_80 sm_90 sm_100; do tools/kernel_report --build build-cuda --arch $$arch >/dev/null || exit 1; done

test-gpu: ## run the tests that need a GPU; on a machine without a compiler: copy build/gpu there, and build/gpu/run
	@tools/setup test
	@tools/setup gpu
	@$(CMAKE) --preset release -DSHARDWISE_TESTS=ON >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target gpu_cuda_kernels_test gpu_cuda_cpu_tests gpu_run_fault gpu_bench device_test \
		shardwise_cuda virtual_ranks
	@tests/gpu/bundle build build/gpu
	@build/gpu/run

bench-gpu: ## time the GPU kernels beside PyTorch, torch.compile and Triton on a machine with a GPU (benchmarks/gpu_kernels.py)
	@tools/setup test
	@$(CMAKE) --preset release -DSHARDWISE_TESTS=ON >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target gpu_bench shardwise shardwise_cuda
	@.venv-test/bin/python benchmarks/gpu_kernels.py --library build/gpu_bench.so
	@.venv-test/bin/python benchmarks/gpu_model.py --program build/shardwise

PREFIX ?= /usr/local
install: build ## install the program and the library, and the planner's page if it is built: make install PREFIX=DIR (docs/library.md)
	@$(CMAKE) --build --preset release -j $(JOBS) --target shardwise_library
	@$(CMAKE) --install build --prefix $(PREFIX) >/dev/null
	@echo "install: $(PREFIX)/bin/shardwise and the CMake package shardwise"

build-tests: setup-test
	@$(CMAKE) --preset release -DSHARDWISE_TESTS=ON >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS)

demo: build ## train on a real corpus with TP=2 and SP, generate text, compare with TP=1
	@tools/demo

# The fuzzer is a build of its own, by clang.
build-fuzz: setup-test
	@$(CMAKE) --preset fuzz >/dev/null
	@$(CMAKE) --build --preset fuzz -j $(JOBS) --target fuzz

test: build-tests build-fuzz ## run every test, with covering arrays of large parameter spaces
	@$(CTEST) --test-dir build --output-on-failure -j $(TEST_JOBS)
	@$(SAY_COVERED)

check-room:
	@test -n "$(wildcard tests/$(ROOM)/*_test.cpp)" || \
		{ echo "test-room: ROOM must be a directory of tests/ with tests; got '$(ROOM)'" >&2; exit 2; }

test-room: check-room setup-test ## build and run one room's tests: make test-room ROOM=parallel
	@grep -qs '^SHARDWISE_TESTS:BOOL=ON' build/CMakeCache.txt || $(CMAKE) --preset release -DSHARDWISE_TESTS=ON >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target $(ROOM)_test
	@tests/run_room build/tests/$(ROOM)_test $(shell expr 2 \* $(JOBS))

test-full: build-tests build-fuzz ## run every test with all combinations, deliberate faults, simulated nodes and hosts, and losses of power (need root), and other builds
	@SHARDWISE_TEST_FULL=1 $(CTEST) --test-dir build --output-on-failure -j $(TEST_JOBS) --timeout 86400
	@$(SAY_COVERED)
	@$(MAKE) --no-print-directory test-planner
	@$(MAKE) --no-print-directory test-report
	@$(MAKE) --no-print-directory test-mutations
	@tests/mpi/two_nodes.sh build
	@tests/mpi/emulated_hosts.sh build
	@tests/options/run $(JOBS)
	@$(MAKE) --no-print-directory docs
	@tests/durability/power_loss build

figures: build ## draw docs/figures/*.svg from the program's own numbers (tools/figures --help)
	@.venv/bin/python tools/figures

test-planner: build planner ## check that the planner's page computes what the program does, in node and in Chromium
	@tools/setup browser
	@cd tests/planner && SHARDWISE_BUILD=$(CURDIR)/build ../../.venv/bin/python -m unittest wasm_test page_test

test-report: build ## check in Chromium that the page of `shardwise report` shows the figures of its runs
	@tools/setup browser
	@cd tests/report && SHARDWISE_BUILD=$(CURDIR)/build ../../.venv/bin/python -m unittest page_test

curves: build-tests ## record and draw docs/figures/curves.svg: the losses of one run under every parallel configuration
	@rm -f build/curves.json
	@SHARDWISE_TEST_FULL=1 SHARDWISE_CURVES=build/curves.json build/tests/runs_test --gtest_filter='Curves.*'
	@cp build/curves.json docs/figures/data/curves.json
	@.venv/bin/python tools/figures curves

test-mutations: setup-test ## check that tests and doctor notice the deliberate faults (tests/mutation/faults.md)
	@tests/mutation/check
	@$(CMAKE) --preset release -DSHARDWISE_TESTS=ON >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target mutants
	@tests/mutation/run build/tests/mutation

test-generated-mutations: setup-test ## check that tests notice changes that a machine made (tests/mutation/generated)
	@$(CMAKE) --preset release -DSHARDWISE_TESTS=ON >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target generated_mutants
	@.venv-test/bin/python tests/mutation/generated/run build/tests/mutation

docs: ## write the API reference, build/docs/html; fail if a public declaration has no comment
	@tools/setup docs
	@tools/api_docs

bench: build-tests ## benchmark shardwise against other libraries
	@tools/setup bench
	@.venv-test/bin/python benchmarks/run.py

format: setup ## format the sources
	@.venv/bin/clang-format -i $(SOURCES)

check-format: setup ## fail if `make format` would change anything
	@.venv/bin/clang-format --dry-run -Werror $(SOURCES)

# Clang has no omp.h, so it uses GCC's, after all other include directories. The macro removes GCC's attribute
# malloc(deallocator), which Clang does not support.
test-tidy: ## run clang-tidy on the sources of shardwise/
	@tools/setup tidy
	@$(CMAKE) --preset tidy >/dev/null
	@find shardwise -name '*.cpp' ! -name '*_isa.cpp' | xargs -n 1 -P $(JOBS) .venv/bin/clang-tidy -p build-tidy --quiet \
		--extra-arg=-idirafter --extra-arg=$(shell $(CXX) -print-file-name=include) \
		'--extra-arg=-D__malloc__(...)=__malloc__'

test-asan: setup-test ## run every test with the address and undefined behavior sanitizers
	@$(CMAKE) --preset asan >/dev/null
	@$(CMAKE) --build --preset asan -j $(JOBS)
	@$(CTEST) --test-dir build-asan --output-on-failure -j $(TEST_JOBS)

test-fuzz: build-fuzz ## search with libFuzzer for inputs that break a reader, a minute each (SECONDS_EACH, RUNS)
	@tests/fuzz/run

# The components whose tests run ranks as threads of one process, or parallel loops; ranks as processes, whose launcher,
# transports and torch backend have threads of their own; and the examples.
THREADED = base io comm launch mpi config text kernels quant theory parallel nn model checkpoint plan train infer doctor runs \
	examples
test-tsan: setup-test ## run the tests that use threads, with the thread sanitizer
	@$(CMAKE) --preset tsan >/dev/null
	@$(CMAKE) --build --preset tsan -j $(JOBS) --target $(THREADED:=_test) shardwise_python_backend
	@$(CTEST) --test-dir build-tsan --output-on-failure -R '^(($(shell echo $(THREADED) | tr ' ' '|'))\.|python\.torch_)'

# Counting takes time, so deadlines are longer. The report is written even if a test fails.
coverage: setup-test ## measure the lines and branches that the tests execute; fail below 90 % of the lines of a room
	@tools/setup coverage
	@$(CMAKE) --preset coverage >/dev/null
	@$(CMAKE) --build --preset coverage -j $(JOBS)
	@find build-coverage -name '*.gcda' -delete
	@export SHARDWISE_TEST_TIME_SCALE=$${SHARDWISE_TEST_TIME_SCALE:-3}; \
		$(CTEST) --test-dir build-coverage --output-on-failure -j $(TEST_JOBS); passed=$$?; \
		tests/coverage/report build-coverage && exit $$passed

clean: ## remove build directories; keep the environments
	@rm -rf build build-debug build-asan build-tsan build-tidy build-fuzz build-options build-coverage
