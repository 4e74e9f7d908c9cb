# SPDX-License-Identifier: Apache-2.0
# Every target makes what it needs: a C compiler, make and Python >= 3.11 with pip and venv are all that it expects.
# Tests see the installed wheel, which is built from the sdist: nothing that the tree alone has can hide a gap.

PYTHON ?= python3
ROOT := $(CURDIR)
WORK := $(ROOT)/build/make
DIST := $(WORK)/dist
unexport PYTHONPATH  # of the caller: it could bring in a tree's package

# What runs once more on each instruction set but the last, the default; kernel tests and those of the bits take all of
# them by themselves.
FORCED := tests/layers tests/test_model.py tests/test_golden_hf.py

# $(call fresh,NAME): a new virtual environment; $(call run,NAME)/TOOL: its tool, from a folder where the tree's
# package cannot be imported.
fresh = rm -rf $(WORK)/$(1) && $(PYTHON) -m venv $(WORK)/$(1) && mkdir -p $(WORK)/away
run = cd $(WORK)/away && PATH="$(WORK)/$(1)/bin:$$PATH" $(WORK)/$(1)/bin
lint = PATH="$(WORK)/$(1)/bin:$$PATH" && ruff check . && cython-lint gpt2cy
paths = $(addprefix $(ROOT)/,$(wildcard $(1)))
pytest = pytest --rootdir=$(ROOT) -c $(ROOT)/pyproject.toml -q
# Files of tests side by side, in their order (else the few long tests of test_csrc.py would be alone at the end);
# then those that measure time, by themselves. $(call tests,VENV,MARKERS,ARGUMENTS)
JOBS ?= 2
beside = -n $(JOBS) --dist loadfile --no-loadscope-reorder
tests = $(call run,$(1))/$(pytest) $(beside) -m "$(2) and not alone" $(3) && \
  $(call run,$(1))/$(pytest) -m "$(2) and alone" $(3)

# Targets of their own.
ELSEWHERE := --ignore=$(ROOT)/tests/peers --ignore=$(ROOT)/tests/builds

.PHONY: help test test-peers test-slow test-exhaustive test-csrc test-builds test-builds-quick debug-test test-asan \
	test-valgrind test-neon neon-tools demo lint clean sdist dist

help:
	@echo "make test         build the sdist, the wheel from it, and test the installed wheel; lint and stubs too"
	@echo "make test-peers   compare with PyTorch and transformers, live"
	@echo "make test-slow    what takes longer: builds, large models, timing"
	@echo "make test-exhaustive  all float32, 100,000 rounds of fuzz: half an hour"
	@echo "make test-csrc    the C kernels alone: guard pages, sanitizers, race detector, another compiler"
	@echo "make test-builds  every compiler, option and Python (PYTHONS=\"python3.11 python3.13 ...\"): the same bits"
	@echo "make test-builds-quick    three of those builds: clang, gcc without optimisation or OpenMP, the stable ABI"
	@echo "make debug-test   the tests of what Cython compiles, with bounds checks on"
	@echo "make test-asan    the tests of what is compiled, under the address sanitizer"
	@echo "make test-valgrind    a small forward under valgrind's memcheck"
	@echo "make test-neon    the C kernels for aarch64, cross-compiled and emulated"
	@echo "make demo         install the package and run 'gpt2cy demo'"
	@echo "make lint         ruff and cython-lint"
	@echo "make clean        remove what was built"

sdist:
	$(call fresh,venv-build)
	rm -rf $(DIST)
	$(WORK)/venv-build/bin/pip install -q build
	$(WORK)/venv-build/bin/python -m build --sdist --outdir $(DIST) $(ROOT) > $(WORK)/sdist.log || \
	  { cat $(WORK)/sdist.log; exit 1; }

dist: sdist
	$(WORK)/venv-build/bin/pip wheel -q --no-deps -w $(DIST) $(DIST)/*.tar.gz

test: dist
	$(call fresh,venv-test)
	$(WORK)/venv-test/bin/pip install -q "$$(ls $(DIST)/*.whl)[test,lint,plot]"
	$(call lint,venv-test)
	$(call run,venv-test)/python -m mypy.stubtest gpt2cy --allowlist $(ROOT)/tests/stubtest_allowlist.txt
	$(call run,venv-test)/python -c "from gpt2cy.kernels import dispatch; print(*dispatch.available())" > $(WORK)/isas
	for isa in $$(sed 's/ [^ ]*$$//' $(WORK)/isas); do \
	  echo "GPT2CY_ISA=$$isa"; \
	  (export GPT2CY_ISA=$$isa; $(call run,venv-test)/$(pytest) $(beside) -m "not slow" $(call paths,$(FORCED))) || exit 1; \
	done
	$(call tests,venv-test,not slow,$(ELSEWHERE) $(ROOT)/tests)

test-peers: dist
	$(call fresh,venv-peers)
	$(WORK)/venv-peers/bin/pip install -q "$$(ls $(DIST)/*.whl)[test]" -r $(ROOT)/tests/peers/requirements.txt
	$(call run,venv-peers)/$(pytest) $(beside) $(ROOT)/tests/peers $(call paths,tests/test_checks.py tests/test_bad_input.py)

# The test modules are this environment's; what they test is in others, of their own.
test-builds test-builds-quick: dist
	$(call fresh,venv-builds)
	$(WORK)/venv-builds/bin/pip install -q "$$(ls $(DIST)/*.whl)[test]" -r $(ROOT)/tests/builds/requirements.txt
	$(call run,venv-builds)/$(pytest) -n $(JOBS) --dist loadgroup \
	  $(if $(findstring quick,$@),-m "not slow",) -rs -o faulthandler_timeout=0 $(ROOT)/tests/builds

test-slow: dist
	$(call fresh,venv-slow)
	$(WORK)/venv-slow/bin/pip install -q "$$(ls $(DIST)/*.whl)[test]"
	$(call tests,venv-slow,slow and not exhaustive,$(ELSEWHERE) $(ROOT)/tests)

test-exhaustive: dist
	$(call fresh,venv-exhaustive)
	$(WORK)/venv-exhaustive/bin/pip install -q "$$(ls $(DIST)/*.whl)[test]"
	$(call run,venv-exhaustive)/$(pytest) -m exhaustive $(ELSEWHERE) $(ROOT)/tests

test-csrc: dist
	$(call fresh,venv-csrc)
	$(WORK)/venv-csrc/bin/pip install -q "$$(ls $(DIST)/*.whl)[test]"
	$(call run,venv-csrc)/$(pytest) -m "not slow" $(ROOT)/tests/test_csrc.py

# The same whatever Cython checks: C alone, Python alone, what measures memory, and the scripts that time what is
# tested anyway.
UNCHECKED := $(addprefix --ignore=$(ROOT)/tests/,test_csrc.py test_lessons.py tokenizer test_packaging.py \
	test_memory.py test_plan.py perf)

debug-test: sdist
	$(call fresh,venv-debug)
	rm -rf $(WORK)/debug
	GPT2CY_DEBUG=1 $(WORK)/venv-debug/bin/pip wheel -q --no-deps -w $(WORK)/debug $(DIST)/*.tar.gz
	$(WORK)/venv-debug/bin/pip install -q "$$(ls $(WORK)/debug/*.whl)[test]"
	$(call run,venv-debug)/python -c "import gpt2cy; assert 'debug' in gpt2cy.show_config()['build']"
	$(call tests,venv-debug,not slow,$(ELSEWHERE) $(UNCHECKED) $(ROOT)/tests)

# What measures memory, time or the installed files means nothing under a sanitizer; C programs have their own; the
# command line's processes and what is Python alone (tokenizer, reference, integrations, scripts) are left out too.
UNDER_ASAN := $(filter-out %/test_memory.py %/test_growth.py %/test_packaging.py %/test_cli.py \
	%/test_csrc.py %/test_generate_docs.py, $(wildcard $(ROOT)/tests/test_*.py)) \
	$(addprefix $(ROOT)/tests/,kernels layers inspection generation weights) \
	--deselect=tests/weights/test_load.py::test_peak_memory

# The sanitizer is part of CC: setup.py's probe of OpenMP is linked without LDFLAGS, and the build would be serial.
test-asan: sdist
	$(call fresh,venv-asan)
	rm -rf $(WORK)/asan
	CC="$${CC:-cc} -fsanitize=address -g" \
	  $(WORK)/venv-asan/bin/pip wheel -q --no-deps -w $(WORK)/asan $(DIST)/*.tar.gz
	$(WORK)/venv-asan/bin/pip install -q "$$(ls $(WORK)/asan/*.whl)[test]"
	$(call preload,libasan.so); $(call run,venv-asan)/python -c "import gpt2cy; assert gpt2cy.show_config()['openmp']"
	$(call preload,libasan.so); $(call run,venv-asan)/$(pytest) -m "not slow" $(UNDER_ASAN)

preload = export LD_PRELOAD="$$($${CC:-cc} -print-file-name=$(1))" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1

test-valgrind: dist
	$(call fresh,venv-valgrind)
	$(WORK)/venv-valgrind/bin/pip install -q $(DIST)/*.whl
	cd $(WORK)/away && PYTHONMALLOC=malloc valgrind -q --error-exitcode=9 \
	  --suppressions=$(ROOT)/tests/valgrind.supp $(WORK)/venv-valgrind/bin/python $(ROOT)/tests/memcheck.py

neon-tools:
	@command -v aarch64-linux-gnu-gcc > /dev/null && command -v qemu-aarch64 > /dev/null || \
	  { echo "test-neon needs aarch64-linux-gnu-gcc and qemu-aarch64 (Debian: gcc-aarch64-linux-gnu qemu-user)"; exit 1; }

test-neon: neon-tools dist
	$(call fresh,venv-neon)
	$(WORK)/venv-neon/bin/pip install -q "$$(ls $(DIST)/*.whl)[test]"
	$(call run,venv-neon)/$(pytest) $(ROOT)/tests/test_csrc.py -k aarch64

demo: dist
	$(call fresh,venv-demo)
	$(WORK)/venv-demo/bin/pip install -q $(DIST)/*.whl
	$(call run,venv-demo)/python -m gpt2cy demo

lint:
	$(call fresh,venv-lint)
	$(WORK)/venv-lint/bin/pip install -q $$(sed -n 's/^lint = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",')
	$(call lint,venv-lint)

clean:
	rm -rf build dist *.egg-info .hypothesis .ruff_cache .mypy_cache
	find gpt2cy tests perf examples \( -name '*.so' -o -name __pycache__ \) -prune -exec rm -rf {} +
