package monitor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/runtime/sandbox"
)

const (
	// drainBound is how long the terminal may go on giving output after its
	// last process is gone; the kernel's buffer needs microseconds.
	drainBound = 2 * time.Second
	// writeAgain is how soon an outcome that could not be written is tried again.
	writeAgain = time.Second
)

// wait follows the harness to its end and makes the end durable.
func (s *session) wait() {
	idle := time.AfterFunc(idleAfter, economise)
	exit, err := s.box.Wait(context.Background())
	idle.Stop()
	finished, clockErr := bootTime()
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	_ = s.at(crashpoint.EndExited)
	s.kill() // what it left behind ends with it
	ctx, cancel := context.WithTimeout(context.Background(), drainBound)
	defer cancel()
	if err := s.term.FinishDrain(ctx); err != nil {
		s.log.Info("terminal", "end", err) // the commitment says that it is incomplete
	}
	s.stopWatchers()
	_ = s.term.Close() // what was kept can still be read
	_ = s.at(crashpoint.EndDrained)
	s.conclude(s.outcome(exit, errors.Join(err, clockErr), finished))
}

// conclude writes the outcome, frees the resources and tells everybody. An
// outcome that cannot be written is kept, told to whoever asks, and written as
// soon as there is room: until then the monitor stays, unless nobody could ever
// find it.
func (s *session) conclude(o *Outcome) {
	released := make(chan []string, 1)
	go func() { released <- s.res.release(s.log) }() // the kernel takes its time, and so does the disk
	saved, written := s.save(o)
	_ = s.at(crashpoint.EndOutcome)
	if left := <-released; len(left) > 0 {
		o.Quarantined = left
		written = s.saveOutcome(o)
	}
	if err := s.box.Close(); err != nil {
		s.log.Error("close", "error", err)
	}
	_ = s.at(crashpoint.EndReleased)
	s.finish(o)
	_ = s.at(crashpoint.EndTold)
	time.AfterFunc(idleAfter, economise)
	tick := time.NewTicker(writeAgain)
	defer tick.Stop()
	for !saved || !written {
		if s.forgotten() {
			break
		}
		<-tick.C
		saved = saved || s.saveTranscript()
		written = written || s.saveOutcome(o)
	}
	close(s.durable)
}

// forgotten reports that the session's directory is gone: its owner removed it,
// and nobody will ever look there for what could not be written.
func (s *session) forgotten() bool {
	_, err := os.Lstat(s.spec.Dir)
	if !errors.Is(err, os.ErrNotExist) {
		return false
	}
	s.log.Warn("the session's directory is gone; its end has no reader")
	return true
}

// save writes transcript and outcome at once, or, where that cannot be, what can be in
// the room that was held for it.
func (s *session) save(o *Outcome) (transcript, outcome bool) {
	t, err := s.transcript()
	if err == nil {
		var sealed safefile.New
		if sealed, err = sealOutcome(s.spec.Key, o); err == nil {
			err = safefile.WriteOwners(s.spec.Dir, t, sealed)
		}
	}
	releaseReserve(s.spec.Dir)
	if err == nil {
		return true, true
	}
	s.log.Error("end", "error", err)
	return s.saveTranscript(), s.saveOutcome(o)
}

func (s *session) saveTranscript() bool {
	t, err := s.transcript()
	if err == nil {
		err = safefile.WriteOwners(s.spec.Dir, t)
	}
	if err != nil {
		s.log.Error("transcript", "error", err)
	}
	return err == nil
}

func (s *session) saveOutcome(o *Outcome) bool {
	sealed, err := sealOutcome(s.spec.Key, o)
	if err == nil {
		err = safefile.WriteOwners(s.spec.Dir, sealed)
	}
	if err != nil {
		s.log.Error("outcome", "error", err)
	}
	return err == nil
}

func (s *session) transcript() (safefile.New, error) {
	oldest, data, err := s.retained()
	return newTranscript(oldest, data), err
}

// retained collects what the ring still holds. The stream has ended, so that
// nothing is evicted meanwhile.
func (s *session) retained() (oldest uint64, data []byte, err error) {
	c, err := s.term.Read(0, maxRead)
	oldest, data = c.Next-uint64(len(c.Data)), c.Data
	for err == nil && len(c.Data) > 0 {
		c, err = s.term.Read(c.Next, maxRead)
		data = append(data, c.Data...)
	}
	return oldest, data, err
}

// outcome puts together what happened, after the last process is gone.
func (s *session) outcome(exit sandbox.Exit, waitErr error, finished time.Duration) *Outcome {
	usage, usageErr := s.res.group.Usage()
	disk, full, diskErr := s.res.diskUse()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := errors.Join(waitErr, usageErr, diskErr); err != nil {
		s.log.Error("observation", "error", err)
		if s.forced == "" {
			s.forced = receipt.CauseSupervisorError
		}
	}
	elapsed := uint64(max(finished-s.wall, 0).Milliseconds())
	commitment := s.term.Commitment()
	o := &Outcome{
		ProtocolVersion: ProtocolVersion, SessionID: s.spec.SessionID, ProfileDigest: s.res.profileDigest,
		StartedAtMS: s.began, FinishedAtMS: s.began + elapsed,
		Limits: s.spec.Limits,
		Observed: Observed{
			CPUTimeMS: usage.CPUMicros / 1000, PeakMemoryBytes: usage.MemoryPeakBytes, PeakPIDs: uint32(usage.PIDsPeak),
			WallTimeMS: elapsed, DiskBytes: disk, TerminalOutputBytes: commitment.ByteCount,
		},
		Mechanisms: s.res.mechanisms,
		Transcript: TranscriptID{Schema: commitment.Schema, SHA256: commitment.SHA256,
			ByteCount: commitment.ByteCount, Complete: commitment.Complete},
		Confinement: confinement(s.box.Report(), commitment),
	}
	o.Cause, o.ExitCode = terminalCause(ending{forced: s.forced, usage: usage, full: full, exit: exit, asked: s.asked,
		cpuLimit: time.Duration(s.spec.Limits.CPUTimeMS) * time.Millisecond})
	if o.Cause == receipt.CauseSignaled && exit.Signal > 0 {
		o.Signal = uint32(exit.Signal)
	}
	return o
}

// Room for the outcome is held from before anything runs, so that a disk which
// the rest of the machine has filled meanwhile can still take it.
const (
	reserveName  = "reserve"
	reserveBytes = 64 << 10
)

func reserveOutcome(dir string) error {
	f, err := safefile.CreatePassing(filepath.Join(dir, reserveName))
	if err != nil {
		return err
	}
	defer f.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // as for a signal of the Go runtime's own
		err = unix.Fallocate(int(f.Fd()), 0, 0, reserveBytes)
	}
	if errors.Is(err, unix.EOPNOTSUPP) { // the filesystem cannot; then bytes must do
		_, err = f.Write(make([]byte, reserveBytes))
	}
	return err
}

func releaseReserve(dir string) { _ = os.Remove(filepath.Join(dir, reserveName)) }

// idleAfter is how long a session must have had nothing to do with its monitor
// before the monitor tidies up: a short session should not wait for that.
const idleAfter = time.Second
