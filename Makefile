# The commands of README and CONTRIBUTING. Each does the set-up it needs; steps that are done are not repeated.
# Variables: JOBS, how many compilers or tests run at once.

# A compiler that sees ATen takes up to 2 GB.
JOBS ?= $(shell awk '/^MemAvailable/ {m = int($$2 / 2000000)} END {"nproc" | getline n; \
	j = m < n ? m : n; print j < 1 ? 1 : j}' /proc/meminfo)
SOURCES = $(shell find shardwise python tests examples benchmarks cmake -name '*.h' -o -name '*.cpp' -o -name '*.cu')
CMAKE = .venv/bin/cmake
CTEST = .venv/bin/ctest
# How many combinations the tests went through.
SAY_COVERED = sed -n 's/^covered: //p' build/Testing/Temporary/LastTest.log

.DEFAULT_GOAL := help
.PHONY: help setup setup-test build build-tests demo test test-full test-mutations test-fuzz bench curves format check-format check-tidy \
	check-asan check-tsan clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup:
	@tools/setup

setup-test:
	@tools/setup test

build: setup ## the program, build/shardwise
	@$(CMAKE) --preset release >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target shardwise

build-tests: setup-test
	@$(CMAKE) --preset release -DSHARDWISE_TESTS=ON >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS)

demo: build ## train on a real corpus with TP=2 and SP, generate, compare with TP=1
	@tools/demo

test: build-tests ## every test, with coverings of the large spaces
	@$(CTEST) --test-dir build --output-on-failure -j $(JOBS)
	@$(SAY_COVERED)

test-full: build-tests ## the same with every combination of what decides a split, ranks on two hosts (root), and other builds
	@SHARDWISE_TEST_FULL=1 $(CTEST) --test-dir build --output-on-failure -j $(JOBS) --timeout 86400
	@$(SAY_COVERED)
	@tests/mpi/two_hosts.sh build
	@tests/options/run $(JOBS)

curves: build-tests ## docs/curves.svg: the losses of one run, split in every way
	@rm -f build/curves.json
	@SHARDWISE_TEST_FULL=1 SHARDWISE_CURVES=build/curves.json build/tests/runs_test --gtest_filter='Curves.*'
	@.venv/bin/python tools/plot_curves build/curves.json docs/curves.svg

test-mutations: setup-test ## which test notices which deliberate fault (tests/mutation/faults.md); part of make test
	@$(CMAKE) --preset release -DSHARDWISE_TESTS=ON >/dev/null
	@$(CMAKE) --build --preset release -j $(JOBS) --target mutants
	@tests/mutation/run build/tests/mutation

bench: build-tests ## ours and others side by side
	@tools/setup bench
	@.venv-test/bin/python benchmarks/run.py

format: setup ## lay out the sources
	@.venv/bin/clang-format -i $(SOURCES)

check-format: setup ## fail if `make format` would change anything
	@.venv/bin/clang-format --dry-run -Werror $(SOURCES)

# Clang has no omp.h of its own: GCC's, behind all other directories, and without what GCC alone says there, which function
# frees what another has allocated.
check-tidy: ## clang-tidy over the sources of shardwise/
	@tools/setup tidy
	@$(CMAKE) --preset tidy >/dev/null
	@find shardwise -name '*.cpp' ! -name '*_isa.cpp' | xargs -n 1 -P $(JOBS) .venv/bin/clang-tidy -p build-tidy --quiet \
		--extra-arg=-idirafter --extra-arg=$(shell $(CXX) -print-file-name=include) \
		'--extra-arg=-D__malloc__(...)=__malloc__'

check-asan: setup-test ## every test with the address and undefined behavior sanitizers
	@$(CMAKE) --preset asan >/dev/null
	@$(CMAKE) --build --preset asan -j $(JOBS)
	@$(CTEST) --test-dir build-asan --output-on-failure -j $(JOBS)

test-fuzz: setup-test ## 100,000 changed inputs for each reader of foreign files, under the same sanitizers
	@$(CMAKE) --preset asan >/dev/null
	@$(CMAKE) --build --preset asan -j $(JOBS) --target fuzz
	@build-asan/tests/fuzz/fuzz tests/fuzz/seeds 100000

# The rooms whose tests run ranks as threads of one process, or loops shared by threads; and the examples. Not text,
# whose tests train SentencePiece models: by threads of a library that is not instrumented.
THREADED = base io comm kernels quant theory parallel nn model checkpoint plan train infer doctor runs examples
check-tsan: setup-test ## the tests of ranks and loops as threads, with the thread sanitizer
	@$(CMAKE) --preset tsan >/dev/null
	@$(CMAKE) --build --preset tsan -j $(JOBS) --target $(THREADED:=_test)
	@$(CTEST) --test-dir build-tsan --output-on-failure -R '^($(shell echo $(THREADED) | tr ' ' '|'))\.'

clean: ## remove what was built; the environments stay
	@rm -rf build build-debug build-asan build-tsan build-tidy build-options
