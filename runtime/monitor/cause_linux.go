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

// An ending is all that decides why a session is said to have ended.
type ending struct {
	forced   string // the first cause that ended it by force
	usage    cgroup.Usage
	cpuLimit time.Duration
	full     bool // a partition has no free page or inode
	exit     sandbox.Exit
	asked    bool // somebody asked for the end
}

// terminalCause names why the session ended: the first forced cause, or a limit
// that the kernel reports to have been met although nobody saw it in time, or
// how the harness itself ended. An init that died of nothing of ours comes
// last. The exit code is given for "exited" alone.
func terminalCause(e ending) (string, *uint32) {
	cause, met := e.usage.Exceeded(e.cpuLimit)
	switch {
	case e.forced != "":
		return e.forced, nil
	case met:
		return string(cause), nil
	case e.full:
		return receipt.CauseDiskLimit, nil
	case e.exit.Code >= 0 && !e.exit.InitDied:
		code := uint32(e.exit.Code)
		return receipt.CauseExited, &code
	case e.exit.InitDied && !e.asked:
		return receipt.CauseSupervisorError, nil
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
