# make lab         install the course into .venv, once, and open JupyterLab at the first chapter
# make test        everything that can be tested without a GPU or a browser
# make notebooks   build chapters/, exercises/ and solutions/ from sources/
# make check       lint; name the notebooks that are not what their sources say
#
# make test-compile         every kernel compiled for every GPU of the table, without one; minutes
# make test-triton-newest   the tests that run kernels, with the newest Triton, in .venv-newest
# make test-gpu             what only a GPU shows, on the machine that has it: exactness, determinism, memory
# make bench                our kernels beside torch's on this machine's GPU; writes into flashedu/results/
#
# make class DIR=../my-class   an nbgrader course of the exercises in a new folder: hand out, collect, grade, export
# make test-class     submissions graded through nbgrader, from handing out to the table of grades
# make lecture        the demos full screen, without code, for a room; Voilà is installed into .venv-class, once
# make test-browser   the demos in JupyterLab, in Voilà and as pages, in a real browser; installs Debian's Chromium
#
# PYTHON=python3.12 picks the interpreter; LAB_FLAGS="--no-browser --port=8899" goes to JupyterLab and to Voilà.

PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
GPU_PYTHON := $(or $(wildcard $(VENV_PYTHON)),python3)

.PHONY: lab lecture class test test-class notebooks check dev test-browser test-compile test-triton-newest test-gpu bench

lab:
	@$(PYTHON) tools/bootstrap.py lab $(LAB_FLAGS)

lecture:
	@$(PYTHON) tools/bootstrap.py lecture $(LAB_FLAGS)

class:
	$(if $(DIR),,$(error Say where the course is to lie, in a folder that does not exist yet: make class DIR=../my-class))
	@$(PYTHON) tools/bootstrap.py class "$(DIR)"

# a process for each core, and in each of them NumPy and torch on one thread
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

test: dev
	$(ONE_THREAD) $(VENV_PYTHON) -m pytest -q -rs -n logical --dist loadfile
	$(VENV_PYTHON) -m ruff check

test-browser:
	@$(PYTHON) tools/bootstrap.py browser
	$(ONE_THREAD) .venv-class/bin/python -m pytest -q -rs -m browser tests/browser

test-class:
	@$(PYTHON) tools/bootstrap.py test-class
	$(ONE_THREAD) .venv-class/bin/python -m pytest -q -rs -n logical --dist loadfile -m nbgrader tests/classroom

test-compile: dev
	$(VENV_PYTHON) -m pytest -q -rs -m grid tests/kernels/test_compiled.py

test-triton-newest:
	@$(PYTHON) tools/bootstrap.py newest
	$(ONE_THREAD) .venv-newest/bin/python -m pytest -q -rs -n logical --dist loadfile tests/kernels tests/grading

# in several processes where pytest-xdist is installed
test-gpu:
	$(ONE_THREAD) $(GPU_PYTHON) -m pytest -q -rs \
	  $$($(GPU_PYTHON) -c "import xdist; print('-n logical')" 2>/dev/null) \
	  tests/gpu tests/kernels/test_leaks.py tests/kernels/test_differences.py

bench:
	$(GPU_PYTHON) -m flashedu bench

notebooks: dev
	$(VENV_PYTHON) tools/build.py

check: dev
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) tools/build.py --check

dev:
	@$(PYTHON) tools/bootstrap.py dev
