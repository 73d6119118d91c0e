package seccomp

import "golang.org/x/sys/unix"

// auditArch is AUDIT_ARCH_AARCH64, the value of seccomp_data.arch for this binary.
const auditArch = unix.AUDIT_ARCH_AARCH64

// x32Bit is zero: the architecture has no second ABI under the same arch value.
const x32Bit = 0

// native are the calls only this architecture has; it has none beyond the common
// ones (the 32-bit ABI has its own arch value and is refused by that).
var native = []uint32{}
