# Everything starts from a clean clone: each target first makes .venv from requirements.lock, once.

PYTHON ?=
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
# The tests and checks never see a real key, whatever .env says; they may use a server named by DATABASE_URL.
TEST_ENV := DEMO=1 AI_PROVIDER= AI_API_KEY= AI_BASE_URL= AI_MODEL= AI_MODEL_FALLBACK= AI_ACCOUNTS= ALERT_URLS= SMOKE_DAILY= \
	WEBHOOKS= POLZA_API_KEY= POLZA_BASE_URL= FAL_KEY= FAL_BASE_URL= OPENROUTER_API_KEY= OPENROUTER_BASE_URL= \
	GIGACHAT_CREDENTIALS= GIGACHAT_BASE_URL= GIGACHAT_OAUTH_URL=

.PHONY: help setup run test check pure fmt lint messages bench holds smoke-clean clean

help:
	@echo "make run      start the desk: database, sandbox, workers, web; prints the address and the accounts"
	@echo "make test     the tests; WHOLE=1 with every case of what is tried exhaustively"
	@echo "make check    lint, types, imports, migrations, pure tests"
	@echo "make fmt      format and fix what can be fixed"
	@echo "make bench    all benchmarks, quickly"
	@echo "make holds ISSUE=02 [LINE=3]   show that an issue's promises hold"
	@echo "make messages bring the catalogues of locale/ up to the code"
	@echo "make setup    only the environment (.venv)"
	@echo "make smoke-clean | clean   remove caches | also .venv and all of var/, the demo's data"

setup: .venv/.installed

.venv/.installed: requirements.lock
	@set -e; \
	fits='import sys; sys.exit(sys.version_info < (3, 11))'; \
	shows='import sys; print("%d.%d" % sys.version_info[:2])'; \
	if [ -n "$(PYTHON)" ]; then candidates="$(PYTHON)"; \
	else candidates="python3.13 python3.12 python3.11 python3.14 python3"; fi; \
	python=; seen=; \
	for candidate in $$candidates; do \
		if "$$candidate" -c "$$fits" 2>/dev/null; then python="$$candidate"; break; fi; \
		version=$$("$$candidate" -c "$$shows" 2>/dev/null) && seen="$$seen $$candidate is $$version;" || true; \
	done; \
	if [ -z "$$python" ]; then \
		echo "Python 3.11 or newer is needed.$${seen:+ Found:$$seen}" >&2; \
		echo "Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.13)," >&2; \
		echo "or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	echo "Environment: .venv with $$($$python --version), packages from requirements.lock"; \
	rm -rf .venv; \
	if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --python "$$($$python -c 'import sys; print(sys.executable)')" .venv; \
		uv pip install --quiet --python .venv/bin/python --require-hashes --no-deps --only-binary :all: -r requirements.lock; \
	else \
		if ! $$python -c 'import venv, ensurepip' 2>/dev/null; then \
			echo "$$python has no venv module. Debian, Ubuntu: apt install python$$($$python -c "$$shows")-venv" >&2; \
			echo "Or install uv: it is used where it is on PATH." >&2; exit 1; \
		fi; \
		$$python -m venv .venv; \
		$(PY) -m pip install -qq --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
			-r requirements.lock; \
	fi; \
	touch $@

run: setup
	@test -e .env || echo "DEMO=1" > .env
	@DEMO=1 exec $(PY) manage.py demo --with-parent

# Two at a time: half of the tests wait for processes. A file's tests stay together, as some share a sandbox.
# Of what is tried exhaustively a run takes a share, another each time; WHOLE=1 takes all.
test: setup
	@$(TEST_ENV) $(PYTEST) -n 2 --dist loadfile $(if $(WHOLE),--whole)

pure: setup
	@$(TEST_ENV) $(PYTEST) -q -m pure

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@$(TEST_ENV) $(PY) -m mypy
	@.venv/bin/lint-imports
	@$(TEST_ENV) $(PY) manage.py makemigrations --check --dry-run
	@$(TEST_ENV) $(PY) manage.py check

check: lint pure

fmt: setup
	@$(PY) -m ruff check --fix --quiet . || true
	@$(PY) -m ruff format .

messages: setup
	@$(PY) -m studio.catalogues

bench: setup
	@set -e; for file in $$(grep -l '__main__' bench/[a-z]*.py); do name=$$(basename $$file .py); \
		$(TEST_ENV) $(PY) -m bench.$$name --quick; done

# One test for each "Must hold" line of an issue: tests/holds/issue_02.py, test_line_3_...
holds: setup
	@test -n "$(ISSUE)" || { echo "Say which issue: make holds ISSUE=02 [LINE=3]" >&2; exit 2; }
	@file=tests/holds/issue_$$(printf '%02d' "$$(echo '$(ISSUE)' | sed 's/^0*//')").py; \
	test -f "$$file" || { echo "There is no $$file. Known: $$(ls tests/holds 2>/dev/null | tr '\n' ' ')" >&2; exit 2; }; \
	$(TEST_ENV) $(PYTEST) "$$file" -s -v -p no:randomly $(if $(LINE),-k "test_line_$(LINE)_")

smoke-clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage* htmlcov
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

clean: smoke-clean
	rm -rf .venv var staticfiles
