# softdpu: what a person types in a checkout. `make help` lists it.
#
# cargo comes from the PATH or from where rustup puts it. Everything that is fetched or made for the lab is in .cache/.

SHELL      := /bin/bash
CARGO      ?= $(shell command -v cargo || echo $(HOME)/.cargo/bin/cargo)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# cargo calls its companions (rustc, clippy) from the PATH.
export PATH := $(dir $(CARGO)):$(PATH)
export CARGO
# The program under test is the one that users run: optimised.
export SOFTDPU_BIN := $(TARGET_DIR)/release/softdpu

KILLS        ?= 200
UPGRADES     ?= 500
MIGRATIONS   ?= 20
FUZZ_SECONDS ?= 60

.DEFAULT_GOAL := help
.PHONY: help setup build demo test unit e2e loom miri bench figures instructions soak fuzz lint clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## Install what is missing on this machine, make the guest's kernel and root image
	@lab/setup.sh

build: ## Build the softdpu program, optimised
	$(CARGO) build --release --locked -p softdpu

demo: setup build ## Stock Debian guests on softdpu's disks and networks: kill, grow, transfer; a table at the end
	$(CARGO) build --release --locked -p softdpu-tests --bin demo
	$(TARGET_DIR)/release/demo

test: setup ## Everything that has to hold: unit tests, then real guests and clients
	@lab/test.sh unit loom e2e

unit: ## The unit tests alone (needs no setup)
	@lab/test.sh unit

e2e: setup ## The end-to-end tests alone
	@lab/test.sh e2e

loom: ## Every interleaving of the lock-free parts
	@lab/test.sh loom

miri: ## Memory and ring under Miri (needs nightly)
	@lab/test.sh miri

bench: setup build ## Measure beside qemu-storage-daemon, DPDK's testpmd and QEMU's networking: figures against bars; raw results and plots in results/
	@lab/setup.sh --bench
	$(CARGO) build --release --locked -p softdpu-tests --bin guest-network
	@lab/bench.sh

figures: ## Write the tables of figures in README and docs/ from docs/results (its README says how to renew them)
	@$(CARGO) run --quiet --locked -p softdpu-bench --bin figures -- $(if $(FROM),--from $(FROM) $(RUNS))

instructions: ## Count instructions per frame and per disk request under callgrind, beside lab/instructions.baseline
	@lab/setup.sh --bench
	@lab/instructions.sh

soak: setup build ## The long loops: KILLS=200 kills, UPGRADES=500 upgrades of each process, MIGRATIONS=20 moves of guests, under verified I/O
	SOFTDPU_KILLS=$(KILLS) SOFTDPU_UPGRADES=$(UPGRADES) SOFTDPU_MIGRATIONS=$(MIGRATIONS) $(CARGO) test --release --locked -p softdpu-tests --test kill --test upgrade --test supervisor_upgrade --test migration_disk -- --nocapture --test-threads=1
	SOFTDPU_BARS=1 $(CARGO) test --release --locked -p softdpu-tests --test wires -- --nocapture

fuzz: ## Every fuzz target for FUZZ_SECONDS=60 seconds
	lab/fuzz.sh $(FUZZ_SECONDS)

lint: ## Formatting, clippy without a warning, fuzz targets compile, shell scripts where shellcheck is installed
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	CUSTOM_LIBFUZZER_PATH=/nonexistent/libfuzzer.a $(CARGO) check --manifest-path fuzz/Cargo.toml --locked
	@if command -v shellcheck >/dev/null; then shellcheck -x -P lab -S warning lab/*.sh && shellcheck -s bash -S warning -e SC2154,SC2034 lab/setup.d/*.sh; else echo "lint: no shellcheck here, shell scripts were not checked"; fi

clean: ## Remove what was built and fetched
	$(CARGO) clean
	rm -rf .cache results
