# SPDX-License-Identifier: Apache-2.0 OR MIT
# make demo    builds, and shows the whole thing on throw-away users
# make test    everything that is tested: units, stories on this kernel, stories in guests
# make build   what is installed
# make bench   what it costs and how well it holds, on this machine
# make arm64   all of it for arm64, below target/arm64, in a Debian 13 of its own
# make guests-arm64  the stories on Debian's arm64 kernels, pages of 4 and 16 KiB
# make instructions  what the kernel half costs with 2, 64 and 255 possible CPUs, in guests
# make rows    what limits on rows of beancounters cost calls, a build, find and sqlite, in a guest
# make growth  how far an account gets over its limit with 8 and 16 running CPUs, in guests
# make latency SUITE=trixie-rt  how long a real-time thread waits beside it, in a guest
# make install what a machine needs, below DESTDIR
# make deb     the same as a Debian package, in target/deb
# make rpm     the same as an rpm, in target/rpm
# make release both, the sources and checksums, in target/published
#
# Each installs by apt what it needs and is missing, and says so (xtask/provide).

CARGO      ?= cargo
PREFIX     ?= /usr
SYSCONFDIR ?= /etc
UNITDIR    ?= /usr/lib/systemd/system
MANDIR     ?= $(PREFIX)/share/man
# Elsewhere than on Debian: /usr/lib64, and /usr/share/zsh/site-functions.
LIBDIR     ?= $(PREFIX)/lib
ZSHDIR     ?= $(PREFIX)/share/zsh/vendor-completions
RELEASE    := target/release
STAGE      := xtask/stage
GUEST_JOBS ?= 2
# The host tells its stories on its own kernel. The guests tell what matters on every kernel, each of them, and share
# what only guests can tell: newest is the slowest, and the other two run one after the other beside it. All that
# guests can tell, on each kernel: make guests TOLD= (hours), at full length TOLD=--whole.
# 6.1 with PREEMPT_RT has the least room for what the kernel half does, and is shown to take it.
# For PREEMPT_RT: make guests SUITES=newest-rt,bookworm-rt,trixie-rt. Suites that are named share all of it equally; one
# alone (SUITES=trixie-backports) tells all: the better part of an hour.
ifeq ($(origin SUITES),undefined)
SUITES      := newest,bookworm,trixie
GUEST_PARTS := --shares 4,6,6 --timeout 3000 --only trixie=--shared
ifeq ($(origin TOLD),undefined)
TOLD        := --share {share} --beside-host {only}
TIGHTEST    := bookworm-rt
endif
else
GUEST_PARTS := --timeout 10800
TOLD        ?= --share {share}
endif

.PHONY: build arm64 guests-arm64 demo test units lint monitoring ansible stories guests runtimes bench instructions rows growth latency install uninstall deb rpm packages release book clean

build:
	xtask/provide build
	$(CARGO) build --release

demo: build
	xtask/provide demo
	$(STAGE) $(RELEASE)/demo

# One after the other: beside a build a guest is slow enough for its stories to tell of the build, and both processors
# are the guests'. The stories on this kernel wait for most of their time (61 % of one processor, 24 minutes): what units
# and lint need is built in what they leave.
test:
	$(MAKE) stories MEANWHILE="xtask/meanwhile '$(CARGO) clippy --release --workspace --all-targets --quiet -- -D warnings; \
		$(CARGO) test --release --workspace --no-run --quiet'"
	$(MAKE) guests
	$(MAKE) units lint

units: build
	xtask/provide bench
	$(CARGO) test --release --workspace --quiet

lint: build
	$(CARGO) fmt --check
	$(CARGO) clippy --release --workspace --all-targets --quiet -- -D warnings

# Alert rules, by Debian's promtool. A second or two.
monitoring:
	xtask/monitoring rules

# The Ansible role, by Debian's ansible-lint. Some seconds.
ansible:
	xtask/provide ansible
	cd dist/ansible && ansible-lint --offline -q example.yml

stories: build
	xtask/provide demo deb
	xtask/unpack $(RELEASE)/programs cron at sudo prometheus
	$(MEANWHILE) $(STAGE) $(RELEASE)/stories

# What a guest that tells stories is given, of the programs in a directory.
told_of = --bpffs --tracefs --module null_blk --module zram $(foreach file,stories hog alloc_client grower libtmalloc.so \
	libbursar.so bursard bursar faulter flooder libprefault.so,--file $(1)/$(file):/opt/$(file)) -- /opt/stories --guest

# Debian's own kernels 6.1, 6.12 and 7.x in QEMU; one guest a processor, the slowest first.
guests: build
	xtask/provide guests
	$(RELEASE)/xtask vm run --suite $(SUITES) --jobs $(GUEST_JOBS) --mem 1024 $(GUEST_PARTS) \
		$(call told_of,$(RELEASE)) $(TOLD)
	$(if $(TIGHTEST),$(RELEASE)/xtask vm run --suite $(TIGHTEST) --mem 1024 --timeout 600 \
		$(call told_of,$(RELEASE)) the_largest_is_killed verifier_cost each_unit)

# All of it for arm64, stories, hog and measurements too, below target/arm64/aarch64-unknown-linux-gnu/release.
arm64: build
	xtask/provide arm64
	xtask/arm64

# Each tells all the stories: some hours. One of them: make guests-arm64 ARM64=trixie-arm64-16k TOLD=each_unit. With
# pages of 16 KiB a huge page is 32 MiB, half of what the stories' users may hold: there only who asks gets them.
ARM64 ?= trixie-arm64 trixie-arm64-16k newest-arm64
guests-arm64: TOLD =
guests-arm64: arm64
	xtask/provide guests
	for suite in $(ARM64); do \
		case $$suite in *16k) huge=madvise ;; *) huge=always ;; esac; \
		$(RELEASE)/xtask vm run --suite $$suite --mem 1536 --timeout 10800 --append transparent_hugepage=$$huge \
			--file target/arm64/guest:/usr $(call told_of,target/arm64/aarch64-unknown-linux-gnu/release) $(TOLD) || exit 1; \
	done

# A JDK and a Go program under the gate: not on every machine, so not part of `make test`.
RUNTIMES := target/runtimes
JDK      ?= $(patsubst %/bin/javac,%,$(realpath $(shell command -v javac)))
runtimes: build
	mkdir -p $(RUNTIMES)
	javac --release 17 -d $(RUNTIMES) e2e/runtimes/Hoard.java
	CGO_ENABLED=0 go build -o $(RUNTIMES)/hoard e2e/runtimes/hoard.go
	LD_LIBRARY_PATH=$(JDK)/lib:$(JDK)/lib/server $(RELEASE)/xtask vm run --suite all --mem 3072 --timeout 900 --bpffs --tracefs \
		--file $(RELEASE)/stories:/opt/stories --file $(RELEASE)/bursard:/opt/bursard \
		--file $(RELEASE)/bursar:/opt/bursar --file $(RELEASE)/hog:/opt/hog \
		--file $(RELEASE)/alloc_client:/opt/alloc_client --file $(RELEASE)/grower:/opt/grower \
		--file $(RUNTIMES)/hoard:/opt/runtimes/hoard \
		--file $(RUNTIMES)/Hoard.class:/opt/runtimes/Hoard.class \
		--file $(JDK):/opt/runtimes/jdk \
		-- /opt/stories --guest gate_lets_java_and_go_start_and_tells_them_no

bench: build
	xtask/provide bench
	xtask/unpack $(RELEASE)/programs libjemalloc2 libmimalloc2.0
	$(STAGE) $(RELEASE)/bursar-bench all

# What the kernel half costs on machines with many CPUs: guests whose clock counts instructions. Some minutes each.
CPUS  ?= 2 64 255
SUITE ?= trixie
instructions: build
	xtask/provide guests
	for cpus in $(CPUS); do \
		$(RELEASE)/xtask vm run --suite $(SUITE) --accel tcg-counted --smp 1 --possible-cpus $$cpus --mem 2048 --timeout 2400 \
			--bpffs --file $(RELEASE)/bursar-bench:/opt/bursar-bench --file $(RELEASE)/hog:/opt/hog \
			--file $(RELEASE)/bursar-bench-allocator:/opt/bursar-bench-allocator \
			--file $(RELEASE)/bursar-bench-idle:/opt/bursar-bench-idle \
			--file $(RELEASE)/bursar-bench-works:/opt/bursar-bench-works \
			-- /opt/bursar-bench instructions --out /tmp || exit 1; \
	done

# What limits on rows cost: the table of docs/design/measured-beancounters.md. Nearly half an hour, most of it a build.
# TOLD=beancounters_programs_in_the_way_of_works says which BPF programs ran how often. Of the compiler: what a build calls.
WORKS = $(foreach program,make gcc as ld find sqlite3,$(shell command -v $(program)):/usr/bin/$(program)) \
	$(shell gcc -print-prog-name=cc1)
rows: TOLD = beancounters_system_cost
rows: build
	xtask/provide guests rows
	$(RELEASE)/xtask vm run --suite $(SUITE) --accel tcg-counted --smp 1 --mem 2048 --timeout 10800 --bpffs --tracefs \
		$(foreach file,stories flooder bursard,--file $(RELEASE)/$(file):/opt/$(file)) \
		$(foreach file,$(WORKS),--file $(file)) -- /opt/stories --guest $(TOLD)

# How far an account gets over its limit where many CPUs run, beside idle processes of its own. Some minutes a cell. The
# root is a ramfs: of a tmpfs programs are shared memory. Huge pages are off: one is larger than what is measured.
RUNNING  ?= 8 16
SIBLINGS ?= 0 100 300 1000
growth: SUITE = newest
growth: build
	xtask/provide guests
	for cpus in $(RUNNING); do for siblings in $(SIBLINGS); do \
		echo "$$cpus CPUs, $$siblings idle processes"; \
		$(RELEASE)/xtask vm run --suite $(SUITE) --smp $$cpus --mem 2560 --timeout 2400 --bpffs --tracefs \
			--append "rootfstype=ramfs transparent_hugepage=never" --file $(RELEASE)/bursard:/opt/bursard \
			--file $(RELEASE)/bursar:/opt/bursar --file $(RELEASE)/hog:/opt/hog \
			--file $(RELEASE)/bursar-bench:/opt/bursar-bench \
			--file $(RELEASE)/bursar-bench-grower:/opt/bursar-bench-grower \
			-- /opt/bursar-bench overcommit --only event --siblings $$siblings --rounds 13 --out /tmp || exit 1; \
	done; done

# How long a real-time thread waits beside bursard (SUITE=trixie-rt): cyclictest, in such a guest.
UNPACKED := $(abspath $(RELEASE))/programs
latency: build
	xtask/provide guests
	xtask/unpack $(UNPACKED) rt-tests libnuma1
	LD_LIBRARY_PATH=$(UNPACKED)/libnuma1/usr/lib/x86_64-linux-gnu $(RELEASE)/xtask vm run --suite $(SUITE) --accel tcg-counted --smp 1 \
		--mem 1024 --timeout 1200 --bpffs --tracefs --file $(RELEASE)/bursard:/opt/bursard --file $(RELEASE)/bursar:/opt/bursar \
		--file $(RELEASE)/hog:/opt/hog --file $(UNPACKED)/rt-tests/usr/bin/cyclictest:/opt/cyclictest \
		--file xtask/latency:/opt/latency \
		--env LD_LIBRARY_PATH=$(UNPACKED)/libnuma1/usr/lib/x86_64-linux-gnu -- sh /opt/latency

# Of dist/, for administrators to look at and take over.
EXAMPLES := notify.toml profile.d/bursar.sh pam/bursar-login \
	$(addprefix prometheus/,bursar.rules.yml bursar.rules.test.yml prometheus.yml \
	bursar-metrics.service bursar-metrics.timer bursar-exporter.socket bursar-exporter@.service) \
	grafana/bursar.json ansible/example.yml $(addprefix ansible/roles/bursar/,defaults/main.yml handlers/main.yml meta/main.yml \
	tasks/main.yml templates/limits.toml.j2 templates/settings.toml.j2 templates/toml.j2)

# Where LIBDIR is not PREFIX/lib a link is there: `bursar run --tmalloc` looks below its own prefix.
install: build
	install -D -m 755 $(RELEASE)/bursard $(DESTDIR)$(PREFIX)/sbin/bursard
	install -D -m 755 $(RELEASE)/bursar-notify $(DESTDIR)$(PREFIX)/sbin/bursar-notify
	install -D -m 755 $(RELEASE)/bursar $(DESTDIR)$(PREFIX)/bin/bursar
	install -D -m 644 $(RELEASE)/libtmalloc.so $(DESTDIR)$(LIBDIR)/libtmalloc.so
	install -D -m 644 $(RELEASE)/libbursar.so $(DESTDIR)$(LIBDIR)/libbursar.so
	install -D -m 644 crates/tmalloc/include/tmalloc.h $(DESTDIR)$(PREFIX)/include/tmalloc.h
	install -D -m 644 crates/libbursar/include/bursar.h $(DESTDIR)$(PREFIX)/include/bursar.h
	install -D -m 755 $(RELEASE)/libprefault.so $(DESTDIR)$(PREFIX)/lib/bursar/libprefault.so
	install -D -m 644 $(RELEASE)/libprefault.a $(DESTDIR)$(PREFIX)/lib/bursar/libprefault.a
	install -D -m 644 crates/prefault/include/prefault.h $(DESTDIR)$(PREFIX)/include/prefault.h
	test $(LIBDIR) = $(PREFIX)/lib || \
		ln -srf $(DESTDIR)$(LIBDIR)/libtmalloc.so $(DESTDIR)$(PREFIX)/lib/bursar/libtmalloc.so
	umask 022 && for section in 1 3 5; do \
		$(RELEASE)/bursar generate man --section $$section $(DESTDIR)$(MANDIR)/man$$section || exit; done
	install -D -m 644 dist/bursard.8 $(DESTDIR)$(MANDIR)/man8/bursard.8
	install -D -m 644 dist/bursar-notify.8 $(DESTDIR)$(MANDIR)/man8/bursar-notify.8
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	umask 022 && $(RELEASE)/bursar generate completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/bursar
	install -d $(DESTDIR)$(ZSHDIR) $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	umask 022 && $(RELEASE)/bursar generate completions zsh >$(DESTDIR)$(ZSHDIR)/_bursar
	umask 022 && $(RELEASE)/bursar generate completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/bursar.fish
	install -D -m 644 dist/bursard.service $(DESTDIR)$(UNITDIR)/bursard.service
	install -D -m 644 dist/bursar-notify.service $(DESTDIR)$(UNITDIR)/bursar-notify.service
	install -D -m 644 dist/bursar-sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/bursar.conf
	for file in $(EXAMPLES); do \
		install -D -m 644 dist/$$file $(DESTDIR)$(PREFIX)/share/doc/bursar/examples/$$file || exit; done
	install -d -m 755 $(DESTDIR)$(SYSCONFDIR)/bursar/limits.toml.d
	test -e $(DESTDIR)$(SYSCONFDIR)/bursar/bursar.toml || \
		install -D -m 644 dist/bursar.toml $(DESTDIR)$(SYSCONFDIR)/bursar/bursar.toml

# Without bursard nobody could take away limits that are in force.
PINS       ?= /sys/fs/bpf/bursar
uninstall:
	@test -n "$(DESTDIR)" || ! ls -d $(PINS)/half-* >/dev/null 2>&1 || { \
		echo "limits are in force ($(PINS)); first: systemctl disable --now bursard && bursard --release" >&2; exit 1; }
	rm -f $(DESTDIR)$(PREFIX)/sbin/bursard $(DESTDIR)$(PREFIX)/sbin/bursar-notify $(DESTDIR)$(PREFIX)/bin/bursar \
		$(DESTDIR)$(UNITDIR)/bursard.service $(DESTDIR)$(UNITDIR)/bursar-notify.service \
		$(DESTDIR)$(PREFIX)/lib/sysusers.d/bursar.conf $(DESTDIR)$(MANDIR)/man8/bursar-notify.8 \
		$(DESTDIR)$(MANDIR)/man1/bursar.1 $(DESTDIR)$(MANDIR)/man1/bursar-*.1 $(DESTDIR)$(MANDIR)/man8/bursard.8 \
		$(foreach page,libbursar tmalloc prefault,$(DESTDIR)$(MANDIR)/man3/$(page).3) \
		$(foreach page,bursar limits,$(DESTDIR)$(MANDIR)/man5/$(page).toml.5) \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/bursar \
		$(DESTDIR)$(ZSHDIR)/_bursar \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/bursar.fish \
		$(foreach file,libprefault.so libprefault.a libtmalloc.so,$(DESTDIR)$(PREFIX)/lib/bursar/$(file)) \
		$(addprefix $(DESTDIR)$(PREFIX)/share/doc/bursar/examples/,$(EXAMPLES)) \
		$(DESTDIR)$(PREFIX)/include/prefault.h \
		$(DESTDIR)$(LIBDIR)/libtmalloc.so $(DESTDIR)$(PREFIX)/include/tmalloc.h \
		$(DESTDIR)$(LIBDIR)/libbursar.so $(DESTDIR)$(PREFIX)/include/bursar.h

deb: build
	xtask/provide deb
	xtask/deb target/deb

rpm: build
	xtask/provide rpm
	xtask/rpm target/rpm

# Packs both without compression, compares them, and has the rpm installed, upgraded and removed in a copy of this machine.
packages: build
	xtask/provide deb rpm
	xtask/test-packages

# What is published of a commit: both packages, built twice and compared, the sources, what they contain, checksums.
release:
	xtask/provide build deb rpm
	xtask/release target/published

# The documents as a site, with a search; needs mdBook.
book:
	xtask/book target/book

clean:
	$(CARGO) clean
