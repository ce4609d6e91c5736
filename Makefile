# One environment, .venv, serves every target. It is built when it is first needed, and again when the pins change.
# A fresh machine needs Python 3.11 or newer and nothing else; PYTHON=/path/to/python chooses one.

PY := .venv/bin/python

.PHONY: help demo test proof check bench look docs format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s%s\n", $$1, $$2 }' Makefile

demo: .venv/.installed  ## train a real data set plainly and hastened, and compare
	@$(PY) examples/demo.py

# A process for each core takes what tests there are from the others. They start hundreds more, which all load the
# package: Python may keep its bytecode, also for who has told it in general to keep none.
test: .venv/.installed  ## run every test
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n auto --maxprocesses 8 --dist worksteal

proof: .venv/.installed  ## run the whole of every proof that `make test` takes a sample of; minutes
	@$(PY) -m pytest -m proof

check: .venv/.installed  ## format, lint, types and the shape of the code
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m pyright
	@$(PY) -m pytest tests/test_shape.py

bench: .venv/.installed  ## measure a trainer's cost a step beside its peers; minutes, with nothing else running
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@$(PY) -m bench.overhead

look: .venv/.installed  ## look at the report in a real browser, light and dark; it is a download of 200 MB
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,browser]'
	@$(PY) -m pytest tests/report/test_page_in_browser.py

docs: .venv/.installed  ## write the pages that are generated from the code
	@$(PY) scripts/build_docs.py

format: .venv/.installed  ## let ruff format the code and mend what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

clean:  ## remove .venv and all caches; runs/ stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints.txt scripts/environment.sh
	@scripts/environment.sh
