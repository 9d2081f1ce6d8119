# `make` prints this menu. Everything a target needs beyond Rust and a C compiler it gets by itself.
CARGO   ?= cargo
PROFILE ?= dev
BIN     := $(or $(CARGO_TARGET_DIR),target)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/wharfline
TOOLS   := target/tools/bin
# What tools/ fetched is found behind what the machine has.
export PATH := $(PATH):$(CURDIR)/$(TOOLS)
# What lands is looked at by a quarter of them: the machines of CI have a bound of time.
SEEDS   ?= $(if $(CI),250,1000)
FROM    ?= 1

# A Rust that came without its formatter or linter gets them from rustup.
rustfmt := $(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
clippy  := $(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy
# The tested binary can be killed at named effects (src/effect.rs), and has the planted faults of the simulation, which do
# nothing while none is armed (src/planted.rs); what `make run` and a release build have not.
points  := --features kill-points,planted
# Everything that has our code.
every   := --lib --bins --tests --bench bench
# It is no test that cargo runs by itself, and forgotten where those are named.
histories := --test sim
# The compiler of the tests is the linter's: a `cargo clippy` beside the build reads everything once more, minutes of it. What
# cargo-clippy tells it, it is told here in the same words.
linted  := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# cargo-nextest is used where it is installed: it runs test binaries side by side.
tests   := if $(CARGO) nextest --version >/dev/null 2>&1; \
	then $(CARGO) nextest run --locked $(points) --no-fail-fast; \
	else $(CARGO) test --locked $(points) --no-fail-fast --lib --bins --tests; fi
simulation = $(CARGO) test --locked --config tools/sim.toml --features planted --test sim --
root    := [ "$$(id -u)" = 0 ] || echo "NOT ROOT: tests that mount need root and will fail; run 'sudo -E make test' for all of them." >&2
kubectl := command -v kubectl >/dev/null || echo "NOT TESTED with kubectl: there is none on the path, and no package of Debian or crates.io brings a recent one." >&2

fetch   := for tool in etcd xfs btrfs runc systemd containerd; do tools/fetch-$$tool || true; done

# Says when a part of `make test` was over, counted from its beginning.
done     = @echo "$(1): over after $$(( $$(date +%s) - $$(head -n 1 target/phases) )) s" >>target/phases

.DEFAULT_GOAL := help
.PHONY: help run test sim planted check lint fmt crds deny bench obligations

help: ## This menu
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## The whole way once: up, a volume in use, all taken down (root; PROFILE=release for speed)
	$(CARGO) build --locked --profile $(PROFILE) --bin wharfline
	@deploy/quickstart.sh $(BIN)

test: ## Everything that CI runs: format, lints, every test, the examples in the docs
	@mkdir -p target && date +%s >target/phases
	@$(rustfmt); $(clippy)
	$(CARGO) fmt --check
	@tools/fetch-csi-driver & driver=$$!; $(fetch); \
	$(linted) $(CARGO) test --locked $(points) --no-run $(every) && \
	$(linted) $(CARGO) test --locked $(points) --no-run $(histories); \
	code=$$?; wait $$driver || true; exit $$code
	$(call done,lints and the build of the tests)
	@$(root)
	@export $(linted); $(tests) || { $(root); exit 1; }
	$(call done,tests)
	$(linted) $(CARGO) test --locked $(points) --doc
	$(call done,examples in the docs)
	$(MAKE) sim
	$(call done,simulation)
	@$(kubectl)
	@tail -n +2 target/phases

sim: ## The whole cluster on simulated time: SEEDS=1000 histories with faults, planted faults; SEED=7 shows one history
	$(simulation) $(if $(SEED),--seed $(SEED) --show,--seeds $(SEEDS) --from $(FROM))
	$(if $(SEED),,$(MAKE) planted)

planted: ## Plants faults one by one and demands that the simulation finds each (ONLY=name chooses one)
	$(simulation) --planted $(ONLY)

check: ## The quick round while working: lints and the unit tests
	@$(clippy)
	$(CARGO) clippy $(points) $(every) -- -D warnings
	$(CARGO) clippy $(points) $(histories) -- -D warnings
	$(CARGO) test $(points) --lib

lint: ## Format and lints, changing nothing
	@$(rustfmt); $(clippy)
	$(CARGO) fmt --check
	$(CARGO) clippy --locked $(points) $(every) -- -D warnings
	$(CARGO) clippy --locked $(points) $(histories) -- -D warnings

fmt: ## Format the code
	@$(rustfmt)
	$(CARGO) fmt

crds: ## Write crds/ anew from the kinds in src/api
	UPDATE_CRDS=1 $(CARGO) test --locked --test crds

obligations: ## Which of the 222 things that CSI asks of an orchestrator a test shows, and which none does
	@mkdir -p target
	@OBLIGATIONS=$(CURDIR)/target/obligations.txt $(CARGO) test --quiet --locked --test tidy the_obligations_are_counted \
		>target/obligations.log || { cat target/obligations.log; exit 1; }
	@cat target/obligations.txt

bench: ## Floors, ratios and targets on this machine (root, a quarter of an hour; PARTS="B1 idle" chooses); JSON in target/bench
	@tools/fetch-etcd || true
	$(CARGO) build --locked --release --bin wharfline
	@mkdir -p target/bench && cp target/release/wharfline target/bench/wharfline
	WHARFLINE_BIN=$(CURDIR)/target/bench/wharfline $(CARGO) bench --locked --bench bench -- $(PARTS)

deny: $(TOOLS)/cargo-deny ## Bans, licences, sources and known faults of the dependencies (compiles cargo-deny once; not in CI)
	$(CARGO) fetch --locked
	$(TOOLS)/cargo-deny --offline check bans licenses sources
	@if $(TOOLS)/cargo-deny fetch db >/dev/null 2>&1; \
	then $(TOOLS)/cargo-deny check advisories; \
	else echo "NOT CHECKED: the advisory database cannot be reached from here."; fi

$(TOOLS)/cargo-deny:
	$(CARGO) install cargo-deny --locked --root target/tools
