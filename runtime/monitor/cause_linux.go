package monitor

import (
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/journal/receipt"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/sandbox"
	"gloved.dev/runtime/terminal"
)

const sigTerm = unix.SIGTERM

// terminalCause names why the session ended: the first forced cause, or a limit
// that the kernel reports to have been met although nobody saw it in time, or
// how the harness itself ended. The exit code is given for "exited" alone.
func terminalCause(forced string, u cgroup.Usage, l Limits, disk uint64, exit sandbox.Exit) (string, *uint32) {
	cause, met := u.Exceeded(time.Duration(l.CPUTimeMS) * time.Millisecond)
	switch {
	case forced != "":
		return forced, nil
	case met:
		return string(cause), nil
	case disk >= l.DiskBytes:
		return receipt.CauseDiskLimit, nil
	case exit.Code >= 0 && !exit.InitDied:
		code := uint32(exit.Code)
		return receipt.CauseExited, &code
	}
	return receipt.CauseSignaled, nil
}

// confinement is what the receipt says about the room.
func confinement(r sandbox.Report, t terminal.Commitment) receipt.Confinement {
	return receipt.Confinement{
		SchemaVersion: 1, ProbeListDigest: r.ProbeDigest, ProbeCount: uint32(len(r.Probes)), ProbeResult: receipt.ProbesRefused,
		SeccompDigest: r.SeccompDigest, LandlockABI: uint32(r.LandlockABI),
		Transcript: &receipt.StreamCommitment{Schema: t.Schema, Digest: t.SHA256, Count: t.ByteCount, Complete: t.Complete},
	}
}

func processID(id cgroup.ProcessIdentity) ProcessID {
	return ProcessID{PID: uint32(id.PID), BootID: id.BootID, StartTicks: id.StartTicks,
		Cgroup: CgroupID{Dev: id.Cgroup.Dev, Ino: id.Cgroup.Ino, PathDigest: id.Cgroup.PathDigest}}
}
