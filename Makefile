# The tasks of this repository. Each target installs what it needs (scripts/setup), except the Rust tool chain.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON := /usr/bin/python3

# make demo QEMU=no leaves the virtual machines out.
QEMU ?= yes
# make fuzz TIME=600 gives every target ten minutes; make soak TIME=600 goes on so long.
TIME ?= 30
# make nightly STAGES="miri fuzz": some of them.
STAGES ?=
# make mutants MUTANTS="flow --shard 1/4": one of the areas, a quarter of its mutants.
MUTANTS ?=
# make test-e2e PYTEST="-k vxlan": arguments for the end-to-end tests.
PYTEST ?=
# make test SINCE=main: the stages that can see what changed since then.
SINCE ?=

# make bench BENCH="--only throughput --rounds 3": arguments for the benchmark.
BENCH ?=
# make bench-quick PROFILE=checked: with the binaries of the tests.
PROFILE ?= release

.PHONY: help demo test test-rust test-e2e nightly bench bench-quick bench-instructions bench-instructions-update \
	bench-programs card-test card-bench card-soak test-binaries card-synthesis rtl-lint fmt fmt-check lint \
	dependencies fuzz mutants soak build verbs verbs-musl plug-ins ovs-pmd \
	install package package-test clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the release binaries
	cargo build --release --locked --bin viaductd --bin viaduct

verbs: ## libibverbs.so.1 and librdmacm.so.1 for programs that use RDMA, and libviaduct-sockets.so.1, in target/release/verbs
	cargo build --release --locked -p verbs -p rdmacm -p preload
	@scripts/link-verbs

MUSL := $(shell uname -m)-unknown-linux-musl
verbs-musl: ## the same for musl (Alpine), in target/*-linux-musl/release/verbs
	@scripts/setup musl
	RUSTFLAGS="-C target-feature=-crt-static" cargo +$$(cat scripts/nightly-toolchain) build --release --locked -Zbuild-std=std,panic_abort \
		-Zbuild-std-features= --target $(MUSL) -p verbs -p rdmacm -p preload
	@CC=musl-gcc scripts/link-verbs target/$(MUSL)/release

plug-ins: ## viaduct-cni, netavark-viaduct and viaduct-agent as static binaries for any distribution, in target/*-linux-musl/plug-in
	@rustup target list --installed | grep -qx $(MUSL) || rustup target add $(MUSL)
	cargo build --profile plug-in --locked --target $(MUSL) -p cni -p agent
	@! readelf --program-headers $(addprefix target/$(MUSL)/plug-in/,viaduct-cni netavark-viaduct viaduct-agent) | grep INTERP

ovs-pmd: ## the driver by which an Open vSwitch programs Viaduct, for the DPDK of this machine, in target/ovs-pmd
	@scripts/setup ovs-pmd
	@$(MAKE) --no-print-directory -C ovs-pmd BUILD=$(CURDIR)/target/ovs-pmd

demo: ## hosts, containers, VMs and a simulated card on this machine: build, run, show, clean up (QEMU=no: containers only)
	@scripts/setup demo $(if $(filter no,$(QEMU)),--no-vm)
	@test -x target/checked/viaductd || echo "building Viaduct, and C++ of rtl/ by Verilator: the first time that takes minutes"
	@$(MAKE) --no-print-directory test-binaries
	@scripts/as-root $(PYTHON) demo/demo.py $(if $(filter no,$(QEMU)),--no-vm)

test: ## every test but those of `make nightly`; stops at the first stage that fails (SINCE=COMMIT: what can see the change)
	@scripts/run-tests $(if $(SINCE),since $(SINCE))

test-rust: ## unit, property and differential tests, the card among them, then miri
	@scripts/run-tests rust

test-e2e: ## end to end, with real guests and peers (PYTEST="-k vxlan" selects)
	@scripts/run-tests e2e $(PYTEST)

nightly: ## what takes too long for every change (hours): loom, instruction counts, fuzz targets for TIME seconds each, proofs of the card, soak, an upgrade, packages; writes docs/nightly.md
	@TIME=$(TIME) scripts/run-tests nightly $(STAGES)

bench-programs:
	@scripts/setup bench
	@$(MAKE) --no-print-directory $(if $(filter release,$(PROFILE)),build verbs,test-binaries)
	$(if $(ALL),,cargo build --profile $(PROFILE) --locked --bin replay)
	@$(MAKE) --no-print-directory ovs-pmd
	@for program in generator memory regions ends streams; do $(MAKE) --no-print-directory -C bench/$$program BUILD=$(CURDIR)/target/bench; done
	@cp target/$(PROFILE)/replay target/bench/

bench: bench-programs ## Viaduct and its peers, measured side by side; report in bench/report (BENCH="--help" tells more)
	@$(PYTHON) -m bench --viaduct-bin target/$(PROFILE) $(BENCH)

bench-quick: bench-programs ## the same in minutes: says that everything can be measured, not how fast it is
	@$(PYTHON) -m bench --viaduct-bin target/$(PROFILE) --quick $(BENCH)

bench-instructions: ## instructions of each stage of the packet path, held against a baseline
	@scripts/setup instructions
	@scripts/check-instructions

bench-instructions-update:
	@scripts/setup instructions
	@scripts/check-instructions --update

card-test: ## the FPGA card: its modules, its engine and the executor on it, simulated clock by clock; proofs
	@scripts/setup proofs
	@rtl/generate --check
	cargo test --profile checked --locked --features card/card-test,offload/card-sim -p rtl -p card -p hbm -p offload
	@rtl/formal/run

card-soak: ## five million random packets and many changes of tables through the card's engine, then through one of two pipes each
	@scripts/setup card
	CARD_PACKETS=5000000 CARD_SEEDS=60 cargo test --profile checked --locked --features card-sim -p card --test integration engine::
	cargo test --profile checked --locked --features card-sim-2x2 -p card --test integration engine::

# ALL=1: with all tests, and the features that those need, so that `make test` builds nothing twice.
test-binaries: ## what the demo and the tests run, in target/checked: built quickly, viaductd with the simulated card in it
	@scripts/setup card
	cargo build --profile checked --locked $(if $(ALL),--workspace --lib --bins --tests --features \
		card/card-sim -F offload/card-sim -F viaductd/card-sim,-p viaductd -p viaduct -p verbs -p rdmacm -p preload -p cni -p agent \
		--features viaductd/card-sim)
	@scripts/link-verbs target/checked

card-bench: ## the FPGA card's cycle gates: packets a clock of its simulation; plots in bench/report (QUICK=1: one pipe of each direction, minutes)
	@scripts/setup card-bench
	cargo run --profile checked --locked -p hbm --example rates
	cargo run --profile checked --locked -p card --features $(if $(QUICK),card-sim,card-sim-2x2) --example card_bench -- $(if $(QUICK),--quick) --json target/card-bench.json
	@$(PYTHON) -m bench.card target/card-bench.json bench/report

card-synthesis: ## what the FPGA card's engine takes of an FPGA, by Yosys, block by block (minutes)
	@scripts/setup proofs
	@rtl/synth/run

rtl-lint: ## the SystemVerilog of the FPGA card: Verilator's and Verible's complaints
	@scripts/setup rtl
	@scripts/lint-rtl

fmt: ## format the code
	cargo fmt --all

fmt-check:
	cargo fmt --all --check

# With all features; the simulations of rtl/ need not be built for that.
lint: export VIADUCT_RTL_CHECK = 1
lint: ## clippy and rustdoc, warnings denied; how comments begin; messages of commits; ruff for Python
	@scripts/lint-comments
	@scripts/check-commits
	cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --locked --quiet
	@scripts/lint-python

dependencies: ## licences, sources and versions of all crates
	@scripts/check-dependencies

fuzz: ## every fuzz target, coverage-guided, for TIME seconds each (default 30)
	@scripts/setup fuzz
	@scripts/fuzz $(TIME)

mutants: ## mutations of the code that everything rests on: 95 % must be caught (hours; MUTANTS="ring --shard 1/4", MUTANTS=--help)
	@scripts/setup mutants
	@scripts/mutants $(MUTANTS)

soak: test-binaries ovs-pmd ## hostile driver, program and wire, changes and restarts at once, then verbs programs that die, for TIME seconds each (default 30); then an Open vSwitch that is killed a hundred times
	@scripts/setup test
	@scripts/as-root env SOAK_SECONDS=$(TIME) $(PYTHON) -m pytest tests/test_soak.py
	SOAK_SECONDS=$(TIME) cargo test --profile checked --locked -p verbs --test deaths -- --ignored --nocapture survived
	@scripts/as-root env VIADUCT_OVS_KILLS=100 $(PYTHON) -m pytest tests/test_ovs_churn.py -k killed --timeout 3600

package: build verbs plug-ins ovs-pmd ## a .deb and an OCI image of what `make install` installs, and .debs for VMs and Open vSwitch, into target/packages
	@scripts/setup package --no-chroots
	@dist/package

package-test: ## the packages installed, upgraded and purged in clean Debian and Ubuntu systems (as root)
	@scripts/run-tests packages

install: build verbs plug-ins ## into DESTDIR/usr/local, with man pages, completions and the systemd unit
	@dist/install

clean: ## remove what was built, downloads included
	cargo clean
	rm -rf .cache
