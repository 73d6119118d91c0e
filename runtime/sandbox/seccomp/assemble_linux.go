package seccomp

import "golang.org/x/sys/unix"

// Offsets in struct seccomp_data (linux/seccomp.h). Both architectures served are
// little-endian, so an argument's low half comes first.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

func argLow(n int) uint32 { return uint32(offArgs + 8*n) }

func argHigh(n int) uint32 { return argLow(n) + 4 }

// block is a run of instructions that returns on every path, so that blocks can be
// laid one behind the other and jumped over.
type block []unix.SockFilter

func stmt(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func jump(code uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k}
}

func load(off uint32) unix.SockFilter { return stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, off) }

func mask(bits uint32) unix.SockFilter { return stmt(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, bits) }

func ret(verdict uint32) block { return block{stmt(unix.BPF_RET|unix.BPF_K, verdict)} }

func allow() block { return ret(unix.SECCOMP_RET_ALLOW) }

func refuse(e unix.Errno) block {
	return ret(unix.SECCOMP_RET_ERRNO | uint32(e)&unix.SECCOMP_RET_DATA)
}

// branch runs yes when the accumulator stands in the relation to k, no otherwise.
func branch(relation uint16, k uint32, yes, no block) block {
	out := make(block, 0, len(yes)+len(no)+2)
	code := unix.BPF_JMP | relation | unix.BPF_K
	if len(yes) <= 255 {
		out = append(out, jump(code, k, 0, uint8(len(yes))))
	} else {
		// A conditional jump reaches 255 instructions; a plain one any distance.
		out = append(out, jump(code, k, 1, 0), stmt(unix.BPF_JMP|unix.BPF_JA, uint32(len(yes))))
	}
	out = append(out, yes...)
	return append(out, no...)
}

// anyOf runs yes when the accumulator equals one of the values.
func anyOf(values []uint32, yes, no block) block {
	out := no
	for i := len(values) - 1; i >= 0; i-- {
		out = branch(unix.BPF_JEQ, values[i], yes, out)
	}
	return out
}

// span is a run of system-call numbers, from first to the next span's first, that
// share one outcome.
type span struct {
	first   uint32
	outcome block
}

// search makes a binary decision tree over spans in ascending order; the
// accumulator holds the number, at least spans[0].first. A tree of some two hundred
// spans decides within eight comparisons, where a list would average a hundred on
// every system call the session ever makes.
func search(spans []span) block {
	if len(spans) == 1 {
		return spans[0].outcome
	}
	mid := len(spans) / 2
	return branch(unix.BPF_JGE, spans[mid].first, search(spans[mid:]), search(spans[:mid]))
}
