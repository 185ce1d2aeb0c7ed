# gpuexec. `make` alone prints what there is. Needs git, make and Python 3.11 to 3.14; everything else goes into .venv.
#
# PYTHON=python3.12 chooses the Python that .venv is made of (and, for test-gpu, the one that runs).
# ARGS="-k softmax" is passed on to pytest, to the bench, to gpuexec run and to the compiler of kernels.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo setup test test-ray quick conformance models features format docs lint types kernels test-gpu soak bench bench-gpu clean compiler

# Bytecode is kept, whatever the shell says: tests start hundreds of processes that would compile every module anew.
export PYTHONDONTWRITEBYTECODE =

VENV := .venv
BIN := $(VENV)/bin
PYTHONS := python3.14 python3.13 python3.12 python3.11 python3

# A process more than there are cores (tests/conftest.py), and whichever is done takes tests of another's; threads of
# OpenBLAS would spin for each other's cores. ARGS="-n 0": all in one process.
PARALLEL := -n auto --dist worksteal
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL)
QUICK := ops importer passes planner execution/runs

help:  ## print this
	@echo "gpuexec runs ONNX models on NVIDIA GPUs. Targets:"
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile

demo: $(BIN)/python  ## make .venv, install the package, classify handwritten digits
	$(call install,run $(CUDA))
	$(BIN)/gpuexec demo $(ARGS)

setup: $(BIN)/python  ## make .venv with everything for development: tests, linters, CUDA wheels
	$(call install,run test dev $(TEST_CUDA))

test: compiler $(BIN)/python  ## set up and run all tests that need no GPU (GPUEXEC_MODELS=folder adds those over models)
	$(call install,run test dev $(TEST_CUDA))
	$(PYTEST) -m "not ray" $(ARGS)

test-ray: $(BIN)/python  ## run the tests of gpuexec.compat.ray and of the servers in examples/, on a Ray of four made-up GPUs
	$(call install,run test ray)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/interfaces/compat/test_ray.py $(ARGS)

quick: compiler $(BIN)/python  ## lint, types, and on the host: operators, importer, passes, planner, executor (two minutes)
	$(call install,run test dev $(TEST_CUDA))
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m quick $(addprefix tests/,$(QUICK)) $(ARGS)

conformance: compiler $(BIN)/python  ## run ONNX's own backend tests on the CPU and the simulator, and count (ARGS=--help)
	$(call install,run test $(TEST_CUDA))
	$(BIN)/python -m tests.system.conformance $(ARGS)

models: compiler $(BIN)/python  ## run every model of the folder GPUEXEC_MODELS names, on the CPU and the simulator, and keep how they did
	$(call install,run test $(TEST_CUDA))
	$(BIN)/python -m tests.system.models --keep $(ARGS)

features: compiler $(BIN)/python  ## run the tests marked with rows of the feature list, and print every row with what proves it
	$(call install,run test $(TEST_CUDA))
	$(BIN)/python -m tests.system.features $(ARGS)

format: $(BIN)/python  ## rewrite the Python sources in the project's format, and the stub of the public names
	$(call install,run dev)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m tests.interfaces.face

docs: $(BIN)/python  ## write the reference of the public names and a page for each task, as HTML, into build/docs
	$(call install,run docs)
	PYTHONPATH=. $(BIN)/python -m tests.interfaces.docs build/docs

lint: $(BIN)/python  ## check format and rules
	$(call install,run dev)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(BIN)/python  ## check types
	$(call install,run test dev $(TEST_CUDA))
	$(BIN)/mypy

kernels: build/launches.json  ## compile what plans launch for every architecture, with budgets and gates on machine code, without a GPU
	$(call install,run test dev $(TEST_CUDA))
	$(BIN)/python -m gpuexec.devices.kernels.compile_all --launches $< $(ARGS)

# What the plans of all operator cases launch. It takes planning them all, so it is made anew only when code changed:
# the package, the cases, or a module of these rooms of tests that cases import.
CASES := . ir model devices
build/launches.json: $(BIN)/python $(shell find gpuexec tests/ops $(CASES:%=tests/%/*.py) -name '*.py' 2>/dev/null)
	$(call install,run test $(TEST_CUDA))
	$(BIN)/python -m tests.devices.launches --out $@

test-gpu:  ## run the tests that need a GPU, with the system's Python and what it has; writes text and XML to $$OUT
	PYTHONPATH=. $(or $(PYTHON),python3) -m tests.system.gpu $(ARGS)

soak: compiler $(BIN)/python  ## run for three quarters of an hour and look for what grows, hangs or goes wrong (ARGS="--minutes 5")
	$(call install,run test $(TEST_CUDA))
	PYTHONPATH=. $(BIN)/python -m tests.system.soak $(ARGS)

bench: $(BIN)/python  ## measure, and print each figure beside its bound
	$(call install,run test $(TEST_CUDA))
	PYTHONPATH=. $(BIN)/python tests/bench/run.py $(ARGS)

bench-gpu:  ## measure on a GPU beside PyTorch in nine minutes, with the system's Python; writes text and JSON to $$OUT
	PYTHONPATH=. $(or $(PYTHON),python3) tests/bench/run_gpu.py $(ARGS)

clean:  ## remove caches and build products (.venv stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# The simulator runs the CUDA sources through the host's C++ compiler.
compiler:
	@$(if $(shell $(find_compiler)),,$(error no C++17 compiler for the simulator: install one, e.g. "apt-get install g++", or set GPUEXEC_CXX))

define find_compiler
for cxx in $${GPUEXEC_CXX:-g++ clang++}; do \
  echo '#include <optional>' | $$cxx -std=c++17 -x c++ -fsyntax-only - 2>/dev/null && echo $$cxx && break; \
done
endef

# The newest supported Python that can make a virtual environment; says what is missing where there is none.
$(BIN)/python:
	@tried=; bare=; for python in $(or $(PYTHON),$(PYTHONS)); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	  tried="$$tried $$python ($$version)"; \
	  case $$version in 3.11|3.12|3.13|3.14) ;; *) continue;; esac; \
	  $$python -c 'import ensurepip, venv' 2>/dev/null || { bare=$${bare:-$$version}; continue; }; \
	  echo "Making $(VENV) with $$python ($$version)."; \
	  $$python -m venv --clear $(VENV) && exit 0; rm -rf $(VENV); exit 1; \
	done; \
	if [ -n "$$bare" ]; then \
	  echo "Python $$bare here can't make a virtual environment (ensurepip is missing): install it, e.g. \"apt-get install python$$bare-venv\"." >&2; \
	else \
	  echo "gpuexec needs Python 3.11 to 3.14; found:$${tried:- none}. Install one, or name it by PYTHON=." >&2; \
	fi; exit 1

# $(call install,run test dev cuda13 cuda12): the package with what these names stand for, once for each content of
# pyproject.toml. "run" is the package alone, the other names are its extras. Stamps in .venv remember what is there.
CUDA = $(shell $(BIN)/python -P gpuexec/devices/cuda/driver.py --extra)
# Tests compile kernels and look at CuPy even where there is no driver. CUDA 12 and 13 are never mixed.
TEST_CUDA = $(or $(CUDA),cuda13)
STAMP = $(VENV)/.installed-$(shell cksum < pyproject.toml | cut -d ' ' -f 1)
comma := ,
empty :=
extras = $(addprefix [,$(addsuffix ],$(subst $(empty) $(empty),$(comma),$(strip $(filter-out run,$(1))))))

define install
@$(if $(filter-out $(wildcard $(addprefix $(STAMP)-,$(1))),$(addprefix $(STAMP)-,$(1))), \
  $(BIN)/python -P gpuexec/devices/cuda/driver.py && \
  echo "Downloading into $(VENV) what is not there yet: $(foreach name,$(1),$(about_$(name)))." && \
  $(BIN)/python -m pip install --disable-pip-version-check -e ".$(extras)" && \
  touch $(addprefix $(STAMP)-,$(1)), :)
endef

about_run := numpy, onnx, ml_dtypes, safetensors, rich (35 MB)
about_ray := + ray with its parts for data and serving, pyarrow, pandas, fastapi (300 MB)
about_test := + pytest, pytest-xdist, hypothesis, onnxruntime, pdoc, polygraphy, hatchling (29 MB)
about_docs := + pdoc, polygraphy (4 MB)
about_dev := + ruff, mypy, nvdisasm (30 MB)
about_cuda13 := + cupy, NVRTC and headers of CUDA 13 (140 MB)
about_cuda12 := + cupy, NVRTC and headers of CUDA 12 (240 MB)
