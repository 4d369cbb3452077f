# make lab         install the course into .venv, once, and open JupyterLab at the first chapter
# make test        everything that can be tested without a GPU
# make notebooks   build chapters/, exercises/ and solutions/ from sources/
# make check       lint; name the notebooks that are not what their sources say
#
# PYTHON=python3.12 picks the interpreter; LAB_FLAGS="--no-browser --port=8899" goes to JupyterLab.

PYTHON ?= python3
VENV_PYTHON := .venv/bin/python

.PHONY: lab test notebooks check dev

lab:
	@$(PYTHON) tools/bootstrap.py lab $(LAB_FLAGS)

test: dev
	$(VENV_PYTHON) -m pytest -q -rs
	$(VENV_PYTHON) -m ruff check

notebooks: dev
	$(VENV_PYTHON) tools/build.py

check: dev
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) tools/build.py --check

dev:
	@$(PYTHON) tools/bootstrap.py dev
