# make demo and make test set up everything they need; make help lists the rest.
PYTHON ?= python3
# Options for pip. Unless you give them: PyTorch's index of CPU wheels, if there is no GPU here and that index answers.
PIP_ARGS ?= $(shell $(PYTHON) tests/torch_index.py)
PYTEST_ARGS ?=
GPU_ARGS ?=
# Files in the order of tests/conftest.py, the longest first.
PYTEST := .venv/bin/pytest -n 3 --dist loadfile --no-loadscope-reorder
BIN := .venv/bin
TOOLS := slurmctld slurmd slurmdbd munged mariadbd mpirun ip hostname ps mmdebstrap fusermount3 zstd
# What the tests need beside Python: Slurm and its accounting, mpirun, network namespaces, newer Debians with their
# Slurm, FUSE for a slow file system, and zstd for packs.
PACKAGES := slurm-wlm slurmdbd slurm-wlm-mysql-plugin mariadb-server-core munge openmpi-bin iproute2 procps hostname mmdebstrap
PACKAGES += fuse3 zstd
# What the drills need more: they build Horovod, node runs Perfetto's reader, a notebook is opened through ssh, and
# strace sees what a job does while its ranks sleep.
DRILL_PACKAGES := libopenmpi-dev cmake g++ nodejs chromium openssh-server openssh-client strace

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

demo: .venv/ready ## write a project for this machine and run it: 2 nodes x 2 ranks, no scheduler, under two minutes
	rm -rf build/demo
	$(BIN)/cookiecutter --no-input --output-dir build . project=demo site=local
	cd build/demo && export CUDA_VISIBLE_DEVICES= PYTHON="$(CURDIR)/$(BIN)/python" && \
	    bash local/submit.sh check/ranks.py && \
	    bash local/submit.sh pi/pi.py --intervals 1e9 && \
	    bash local/submit.sh benchmark/all_reduce.py --max 16M && \
	    bash local/submit.sh training/train_ddp.py --steps 60
	@echo
	@echo "That was build/demo, a project for this machine. Next:"
	@echo "  less build/demo/README.md                                  what it is made of"
	@echo "  $(BIN)/cookiecutter . site=slurm                       the same for your cluster, question by question"
	@echo "  make test                                                  all of it on a real Slurm, started here"

test: .venv/ready packages ## every test of the template and the core of a written project, but the slow drills
	$(PYTEST) --ignore=tests/extras $(PYTEST_ARGS)

test-extras: .venv/ready packages ## the tests of the extras, or of one: make test-extras NAME=notebook
	$(PYTEST) tests/extras/$(NAME) $(PYTEST_ARGS)

test-all: PACKAGES += $(DRILL_PACKAGES)
test-all: TOOLS += cmake g++ mpi.h node chromium sshd ssh strace
test-all: .venv/ready packages ## every test, drills included
	$(PYTEST) -m "drill or not drill" $(PYTEST_ARGS)

test-gpu: .venv/ready ## on a machine with a GPU: everything that needs one, then a table (GPU_ARGS="--only doctor")
	PYTHON="$(CURDIR)/$(BIN)/python" bash tests/gpu/run.sh $(GPU_ARGS)

gpu-bundle: .venv/ready ## write build/gpu-bundle: copy it to a machine with GPU and torch, and type bash gpu-bundle/run.sh
	PYTHON="$(CURDIR)/$(BIN)/python" bash tests/gpu/run.sh --write-bundle build/gpu-bundle

weight: .venv/ready packages ## files and lines of written projects, and what a default job reads and runs
	$(BIN)/python perf/weight.py

lint: .venv/ready ## ruff, shellcheck, actionlint: the template is clean as it stands
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	git ls-files -z '*.sh' '*.sbatch' '*.rc' .ci/run | xargs -0 $(BIN)/shellcheck
	$(BIN)/pip install --quiet -r .github/requirements.txt
	PATH="$(BIN):$$PATH" $(BIN)/actionlint

bakes: .venv/ready ## write every allowed combination of answers; refuse the wrong ones
	$(PYTEST) -m "drill or not drill" tests/template/test_bake.py tests/template/test_refusals.py $(PYTEST_ARGS)

dates: .venv/ready ## fail if the facts about a site were checked more than a year ago
	$(BIN)/python -B -m cluster_options dates

perf: .venv/ready packages ## ratios against other ways to do the same; for a quiet machine
	$(BIN)/pip install --quiet $(PIP_ARGS) -r perf/requirements.txt
	$(BIN)/python perf/bake.py
	$(BIN)/python perf/pi.py
	$(BIN)/python perf/start.py
	$(BIN)/python perf/launchers.py
	$(BIN)/python perf/ddp_step.py
	$(BIN)/python perf/all_reduce.py
	$(BIN)/python perf/hangs.py
	$(BIN)/python perf/spares.py
	$(BIN)/python perf/watch.py
	$(BIN)/python perf/stage.py
	$(BIN)/python perf/snapshot.py

sites: .venv/ready ## write the table of docs/sites.md and the list of README.md from sites/
	@mkdir -p build
	$(BIN)/python -B -m cluster_options table >build/sites.md
	sed -i -e '/<!-- make sites -->/,/<!-- end -->/{/<!--/!d}' -e '/<!-- make sites -->/r build/sites.md' docs/sites.md
	$(BIN)/python -B -m cluster_options titles >build/titles.md
	sed -i -e '/<!-- make sites -->/,/<!-- end -->/{/<!--/!d}' -e '/<!-- make sites -->/r build/titles.md' README.md

questions: .venv/ready ## write cookiecutter.json and the table of docs/questions.md from cluster_options/questions.py
	@mkdir -p build
	$(BIN)/python -B -m cluster_options cookiecutter >build/cookiecutter.json
	$(BIN)/python -B -m cluster_options questions >build/questions.md
	mv build/cookiecutter.json cookiecutter.json
	sed -i -e '/<!-- make questions -->/,/<!-- end -->/{/<!--/!d}' -e '/<!-- make questions -->/r build/questions.md' docs/questions.md

schema: .venv/ready ## write sites/schema.json, for editors, from cluster_options/schema.py
	@mkdir -p build
	$(BIN)/python -B -m cluster_options schema >build/schema.json
	mv build/schema.json sites/schema.json

drills: .venv/ready packages ## break jobs in all the ways of tests/slurm/test_drills.py, of spares and of hangs; write the tables of docs/drills.md
	@mkdir -p build
	DRILLS_FILE="$(CURDIR)/build/drills.md" .venv/bin/pytest -m drill tests/slurm/test_drills.py
	sed -i -e '/<!-- make drills -->/,/<!-- end -->/{/<!--/!d}' -e '/<!-- make drills -->/r build/drills.md' docs/drills.md
	SPARES_FILE="$(CURDIR)/build/spares.md" .venv/bin/pytest -m drill tests/extras/spares/test_spares.py
	sed -i -e '/<!-- make spares -->/,/<!-- end -->/{/<!--/!d}' -e '/<!-- make spares -->/r build/spares.md' docs/drills.md
	HANGS_FILE="$(CURDIR)/build/hangs.md" .venv/bin/pytest -m "drill or not drill" tests/extras/hangs/test_hangs.py
	sed -i -e '/<!-- make hangs -->/,/<!-- end -->/{/<!--/!d}' -e '/<!-- make hangs -->/r build/hangs.md' docs/drills.md

pictures: .venv/ready packages ## record the session and the figures of docs/first-job.md on the tests' Slurm cluster
	$(BIN)/python docs/record.py

clean: ## remove the environment and everything that was built
	rm -rf .venv build

.venv/ready: requirements-dev.txt
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update && \
	    apt-get install -y --no-install-recommends python3-venv; } || \
	    { echo "$(PYTHON) cannot make virtual environments; install python3-venv, or name another: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet $(PIP_ARGS) -r requirements-dev.txt
	@touch $@

# The tests of the cluster skip themselves, with the reason, where Slurm is not installed and may not be.
packages:
	@export PATH="$$PATH:/usr/sbin"; missing=; \
	for tool in $(TOOLS); do \
	    case $$tool in \
	        *.h) echo "#include <$$tool>" | mpicxx -E -x c++ - >/dev/null 2>&1 ;; \
	        *) command -v $$tool >/dev/null ;; \
	    esac || missing="$$missing $$tool"; \
	done; \
	[ -z "$$missing" ] || { [ "$$(id -u)" = 0 ] && apt-get update && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(PACKAGES); } || \
	    echo "missing, and not to be installed without root and apt:$$missing"

.PHONY: help demo test test-extras test-all test-gpu gpu-bundle weight lint bakes dates perf sites drills pictures clean packages
