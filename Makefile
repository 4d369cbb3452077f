# make lab         install the course into .venv, once, and open JupyterLab at the first chapter
# make test        everything that can be tested without a GPU
# make notebooks   build chapters/, exercises/ and solutions/ from sources/
# make check       lint; name the notebooks that are not what their sources say
#
# make test-compile         every kernel compiled for every GPU of the table, without one; minutes
# make test-triton-newest   the tests that run kernels, with the newest Triton, in .venv-newest
# make test-gpu             what only a GPU shows, on the machine that has it: exactness, determinism, memory
#
# PYTHON=python3.12 picks the interpreter; LAB_FLAGS="--no-browser --port=8899" goes to JupyterLab.

PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
GPU_PYTHON := $(or $(wildcard $(VENV_PYTHON)),python3)

.PHONY: lab test notebooks check dev test-compile test-triton-newest test-gpu

lab:
	@$(PYTHON) tools/bootstrap.py lab $(LAB_FLAGS)

test: dev
	$(VENV_PYTHON) -m pytest -q -rs
	$(VENV_PYTHON) -m ruff check

test-compile: dev
	$(VENV_PYTHON) -m pytest -q -rs -m grid tests/kernels/test_compiled.py

test-triton-newest:
	@$(PYTHON) tools/bootstrap.py newest
	.venv-newest/bin/python -m pytest -q -rs tests/kernels tests/grading

# a process for each core, if pytest-xdist is there, and in each NumPy's oracle on one thread
test-gpu:
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(GPU_PYTHON) -m pytest -q -rs \
	  $$($(GPU_PYTHON) -c "import xdist; print('-n logical')" 2>/dev/null) \
	  tests/gpu tests/kernels/test_leaks.py tests/kernels/test_differences.py

notebooks: dev
	$(VENV_PYTHON) tools/build.py

check: dev
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) tools/build.py --check

dev:
	@$(PYTHON) tools/bootstrap.py dev
