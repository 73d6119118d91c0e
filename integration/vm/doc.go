// Package vm runs the tests of the runtime in a throw-away virtual machine, on a kernel the project
// chooses and a pure cgroup v2 host, which neither containers nor most build machines offer.
//
// Its nouns are the lane (the script lane: one boot of one VM around one static program), the base
// (the script base: a Debian cloud kernel and a busybox initramfs, fetched as Debian packages by
// name and cached), the guest (init is its PID 1) and the run (one test binary as one user in one
// guest). TestVM builds the test binaries and reports each run as a subtest; TestGuest runs inside
// and holds the guest to what the other tests there take for granted.
//
// TestPower takes the power from guests at every crash point of runtime. Its nouns: the disk (it
// serves one over NBD, loses what was not flushed, and is the line on which the guest tells what it
// acknowledged), the plan (where one boot is cut) and the ledger (what was acknowledged, kept outside).
//
// The cache is ${GLOVE_VM_CACHE:-${XDG_CACHE_HOME:-~/.cache}/gloved-vm}, some 70 MB; after it is
// filled no network is used. GLOVE_VM_ACCEL picks auto (the default), tcg or kvm. Emulation makes
// CPU-bound Go 10 to 20 times slower, so that a guest is a poor place for timing and none for
// benchmarks. Each run has an ext4 disk of its own at /var/lib/test. A guest holds busybox, e2fsprogs and a few tools of util-linux: tests that want bash,
// python or ssh skip there and run on the host.
//
// It is not for code that merely needs root, and it does not replace the tests on the host: it adds
// a second kind of host.
package vm
