# Everything in one command each: `make demo`, `make test`. `make help` lists them.

PREFIX ?= /usr/local
DESTDIR ?=
# Rust that rustup or somebody else has put into the home directory is found too.
export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO ?= cargo
RELEASE := target/release
MDBOOK := target/tools/bin/mdbook
# Below share: where bash, zsh and fish look for completions.
COMPLETIONS := bash-completion/completions/hiroma zsh/site-functions/_hiroma fish/vendor_completions.d/hiroma.fish

.DEFAULT_GOAL := build
.PHONY: help build demo demo-pool demo-spark test soak soak-placer soak-pool soak-hot soak-quiet soak-spark test-places test-e2e test-strangers test-jvm test-configurations test-ray test-slurm test-vm bench bench-spark bench-spark-jobs spark-jars lint deps deps-build docs man install uninstall release clean

help: ## list these
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: deps-build ## build the command and the libraries (target/release)
	$(CARGO) build --release --workspace

demo: build ## sort a large text natively and with 30 % of the memory it needs, and compare
	@$(RELEASE)/hiroma demo

demo-pool: build ## five members on this machine, a sort in their memory, one of them killed, and a table
	@scripts/demo-pool.sh $(RELEASE)/hiroma

demo-spark: deps-build ## a cached k-means in a Spark cluster: what lies on huge pages, with each policy
	@scripts/deps.sh jvm
	$(CARGO) build --release -p hiroma-spark-jni
	@spark/demo

test: deps ## everything that is tested, quick things first
	@scripts/test.sh all

test-e2e: build ## real programs with a quarter of their memory
	tests/e2e/run

soak: deps-build ## hours of simulated schedules of the pager's state (HIROMA_SCHEDULES, default 10 million)
	HIROMA_SCHEDULES=$${HIROMA_SCHEDULES:-10000000} $(CARGO) test --release -p hiroma-far --lib model::schedules -- --nocapture

soak-placer: deps-build ## simulated schedules of the placer with faults (HIROMA_SCHEDULES, default 1 million)
	HIROMA_SCHEDULES=$${HIROMA_SCHEDULES:-1000000} $(CARGO) test --release -p hiroma-sim --test faults schedules_with -- --nocapture

soak-pool: build ## servers below programs with copies and with parity, killed, stopped, restarted, cut off, slowed down and filled at random (CHAOS_KILLS, default 700 each)
	CHAOS_KILLS=$${CHAOS_KILLS:-700} CHAOS_SEED=$${CHAOS_SEED:-any} tests/e2e/run 'chaos-*'

soak-hot: build ## programs of all kinds without and with `hiroma hot serve` (SOAK_SECONDS, default 3600)
	python3 tests/soak/hot.py $(RELEASE)/hiroma $${SOAK_SECONDS:-3600}

test-places: build ## `hiroma hot serve` and `quiet serve` with little memory, on other file systems, beside dying processes
	python3 tests/soak/places.py $(RELEASE)/hiroma

soak-quiet: build ## a hot file beside a stream, without and with `hiroma quiet serve` (SOAK_SECONDS, default 3600)
	python3 tests/soak/quiet.py $(RELEASE)/hiroma $${SOAK_SECONDS:-3600}

soak-spark: spark-jars ## caching and uncaching for five minutes under the plugin: nothing may grow
	spark/soak 300

test-strangers: build ## programs and behaviours of all kinds, natively and far, compared (installs what it runs)
	tests/strangers/run --install
	tests/strangers/run --markdown target/strangers.md --json target/strangers.json
	tests/strangers/run --quick --kind behaviour --stores sealed

test-jvm: deps-build ## the Spark plugin, with a stock Spark
	@scripts/deps.sh jvm
	$(CARGO) build --release -p hiroma-spark-jni
	spark/test

test-configurations: spark-jars ## a Spark job in some fifty configurations, without and with the plugin (installs PySpark into target)
	scripts/pyspark.sh bench/spark/configurations.py

bench-spark-jobs: spark-jars ## jobs that know nothing of the plugin, in pairs without and with it; about 40 minutes
	scripts/pyspark.sh bench/spark/jobs.py --json target/spark-jobs.json

test-ray: deps-build ## shards of a sweep on a stock Ray (installs Ray into target)
	scripts/ray.sh

test-slurm: deps-build ## shards of a sweep on a Slurm cluster of this machine alone (as root; Debian: slurmctld slurmd munge)
	scripts/slurm.sh

test-vm: build ## kernels of distributions in QEMU
	@scripts/deps.sh vm
	tests/vm/run
	tests/vm/run --only 6.12 --nodes --test quiet-n

bench: build ## the experiments, on this machine
	$(RELEASE)/hiroma bench far

spark-jars: deps-build ## build the Spark plugin, as a Maven repository too, and the jobs of its experiments
	@scripts/deps.sh jvm
	$(CARGO) build --release -p hiroma-spark-jni
	@spark/cross
	@spark/bench/build
	@spark/publish

bench-spark: build spark-jars ## the experiments on Spark's cached data, on this machine (as root)
	$(RELEASE)/hiroma bench spark

lint: deps-build ## format, clippy, licences of dependencies, links in documents
	@scripts/test.sh lint

deps: ## install what building and testing need and this machine lacks (Debian, Ubuntu)
	@scripts/deps.sh build test jvm

deps-build: ## install only what building needs
	@scripts/deps.sh build

docs: $(MDBOOK) ## build the documents as a book (target/book)
	$(MDBOOK) build

$(MDBOOK):
	@scripts/deps.sh build
	$(CARGO) install --locked --version 0.4.52 mdbook --root target/tools

man: build ## write docs/man anew
	$(RELEASE)/hiroma man docs/man

install: build ## install below PREFIX (/usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/hiroma $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 755 $(RELEASE)/hiroma $(RELEASE)/hiroma-bench $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $(RELEASE)/libhiroma_preload.so $(RELEASE)/libhiroma_quiet_preload.so $(DESTDIR)$(PREFIX)/lib/hiroma/
	scripts/install-capi.sh "$(RELEASE)" "$(DESTDIR)" "$(PREFIX)"
	install -m 644 docs/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,$(dir $(COMPLETIONS)))
	$(RELEASE)/hiroma completions bash >$(DESTDIR)$(PREFIX)/share/$(word 1,$(COMPLETIONS))
	$(RELEASE)/hiroma completions zsh >$(DESTDIR)$(PREFIX)/share/$(word 2,$(COMPLETIONS))
	$(RELEASE)/hiroma completions fish >$(DESTDIR)$(PREFIX)/share/$(word 3,$(COMPLETIONS))

uninstall: ## remove what install installed
	rm -f $(DESTDIR)$(PREFIX)/bin/hiroma $(DESTDIR)$(PREFIX)/bin/hiroma-bench $(DESTDIR)$(PREFIX)/share/man/man1/hiroma*.1 $(DESTDIR)$(PREFIX)/share/man/man3/hiroma*.3 $(DESTDIR)$(PREFIX)/share/man/man3/hps.3
	rm -f $(DESTDIR)$(PREFIX)/lib/libhiroma.so* $(DESTDIR)$(PREFIX)/lib/pkgconfig/hiroma.pc $(DESTDIR)$(PREFIX)/include/hiroma.h $(DESTDIR)$(PREFIX)/include/hps.h
	rm -rf $(DESTDIR)$(PREFIX)/lib/hiroma
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/,$(COMPLETIONS))

release: deps-build ## archives of source and binaries with checksums, and a tag (target/release-VERSION); needs no network
	@scripts/release.sh

clean: ## remove what was built
	rm -rf target build spark/hiroma-spark/target spark/bench/target
