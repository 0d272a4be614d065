# make demo   install into .venv, find objects in pictures, and draw them (folder demo)
# make test   install what the tests need and run them (aim: 10 minutes on 2 cores)
# make test-full   the same, more of the same, and full-size networks; writes tests/test-full.txt
# make test-board   what is run on an emulated AArch64 board; builds it once, 0.7 GB in ~/.cache
# make test-newest   make test in a new environment with the newest releases of what it needs
# make lock   renew requirements/, the versions that all of these install
# make conformance   run all of onnx's operator tests on the CPU (aim: 10 minutes on 2 cores)
# make docs   write the documentation to site/, and fail if it has a warning

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
INSTALL := sh tools/pip_install.sh $(BIN)/python
# What an editable install is made of; its Python files are used where they are.
BUILT  := pyproject.toml CMakeLists.txt $(wildcard tvm_edge/opencl/csrc/* tvm_edge/native/csrc/* requirements/*)

.PHONY: conformance demo docs test test-full test-newest test-board lint lock format clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

docs: $(VENV)/.documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: $(VENV)/.tested lint
	$(BIN)/python -m pytest -m "not full and not board" -n 2 --dist worksteal

# With Zig, for the test that links by it: its largest version below 100 MB.
test-full: test
	$(INSTALL) ziglang
	$(BIN)/python -m tools.test_full

test-newest:
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest NEWEST=1

test-board: $(VENV)/.tested
	sh tools/board_packages.sh
	$(BIN)/python -m pytest -m board tests/board

conformance: $(VENV)/.tested
	$(BIN)/python -m benchmarks run onnx_conformance --jobs 2 --check

lint: $(VENV)/.tested
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python tools/import_cycles.py
	$(BIN)/mypy --num-workers 2

format: $(VENV)/.tested
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --upgrade uv
	sh tools/lock.sh $(BIN)/uv

$(VENV)/bin/python:
	PYTHON="$(PYTHON)" sh tools/make_venv.sh "$(VENV)"

$(VENV)/.installed: $(VENV)/bin/python $(BUILT)
	$(INSTALL) --editable '.[demo]'
	touch $@

$(VENV)/.tested: $(VENV)/bin/python $(BUILT)
	sh tools/system_packages.sh
	$(INSTALL) --editable '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.documented: $(VENV)/bin/python $(BUILT)
	$(INSTALL) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) .venv-newest build demo dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
