// Package seccomp holds the system-call filter of a session: an allow-list that
// refuses everything it does not name.
//
// A Policy is compiled to a classic BPF Program; Load installs a Program on the
// calling thread. The filter's decisions are:
//
//   - a call of another ABI (i386, x32, 32-bit ARM) answers ENOSYS;
//   - a call on the list is admitted, a few only for some arguments;
//   - clone3, io_uring and calls newer than the table answer ENOSYS, so that
//     runtimes fall back to what they did before those existed;
//   - huge pages answer as on a host without any: no limit of memory counts them;
//   - setting RLIMIT_CORE is ignored: see sandbox's limits for what that is for;
//   - a socket of a refused family answers EAFNOSUPPORT, as a kernel built
//     without it does;
//   - anything else answers EPERM.
//
// Arguments are compared in the width the kernel reads them: the kernel takes an
// ioctl number, a socket family and clone's flags from the low 32 bits, so a rule
// that compared 64 would be sidestepped by setting a high bit.
//
// It is not a general filter compiler: rules are what this one list needs.
package seccomp
