# One environment, .venv, serves every target. It is built when it is first needed, and updated when the pins change.
# `make demo` installs what running hasten needs; the tools of tests, lint and types come with the first target that
# uses them. A fresh machine needs Python 3.11 or newer and nothing else; PYTHON=/path/to/python chooses one.

PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
PINS := pyproject.toml constraints.txt scripts/environment.sh

.PHONY: help demo test proof check bench look docs site package format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s%s\n", $$1, $$2 }' Makefile

demo: .venv/.installed  ## train a real data set by the baseline and by a plan, and compare
	@$(PY) examples/demo.py

# Tests start hundreds of processes that all load the package, so Python may cache its bytecode even where the
# environment forbids it.
test: .venv/.tools  ## run every test
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --maxprocesses 8 --dist worksteal

proof: .venv/.tools  ## run the proofs in full: `make test` runs a sample of them; minutes
	@$(PIP) -e '.[dev,lightning,transformers]'
	@$(PY) -m pytest -m proof

check: .venv/.tools  ## format, lint, types and the shape of the code
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m pyright
	@$(PY) -m pytest tests/test_shape.py

bench: .venv/.installed  ## measure a trainer's cost a step beside its peers; minutes, with nothing else running
	@$(PIP) -e '.[bench]'
	@$(PY) -m bench.overhead

look: .venv/.tools  ## check the report in a real browser, light and dark; it is a download of 200 MB
	@$(PIP) -e '.[dev,browser]'
	@$(PY) -m pytest tests/report/test_page_in_browser.py

docs: .venv/.installed  ## write the pages that are generated from the code
	@$(PY) scripts/build_docs.py

site: .venv/.tools  ## build the documentation site into site/, and check its links and its navigation
	@$(PIP) -e '.[dev,docs]'
	@$(PY) -m pytest tests/test_site.py
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=scripts $(PY) -m mkdocs build --quiet
	@echo "open site/index.html; for its search: $(PY) -m http.server --directory site"

package:  ## build the wheel and the source distribution into dist/, and use the wheel in an empty environment
	@scripts/check_package.sh

format: .venv/.tools  ## let ruff format the code and fix what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

clean:  ## remove .venv and all caches; runs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: $(PINS)
	@scripts/environment.sh

.venv/.tools: $(PINS)
	@scripts/environment.sh tools
