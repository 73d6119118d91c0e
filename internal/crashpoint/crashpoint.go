// Package crashpoint names every place where a session's life has an effect
// outside the process that makes it: a durable record, a process, a mount, a
// file. Tests end or fail the process exactly there and then look whether the
// next gloved tells the truth.
//
// Its nouns: a Point is such a place; a scope is the materialization root the
// session lives under, by which a test finds its own sessions; Hook is what a
// test binary sets before its roles begin. Nothing of it can be reached from a
// command line, an environment or a file: in a program that sets no Hook every
// Point does nothing.
//
// It is not for decisions, metrics or logs.
package crashpoint

import "slices"

// Hook is called at every Point with its scope. It may end the process; an
// error it returns fails the step at the Point. Only test binaries set it, and
// only before anything runs.
var Hook func(scope string, p Point) error

// At marks that the process has come to p.
func At(scope string, p Point) error {
	if Hook == nil {
		return nil
	}
	return Hook(scope, p)
}

// A Point is the name of a place.
type Point string

// Points of gloved's side of a start, in their order.
const (
	StartReserved    Point = "start.reserved"    // "preparing" is durable
	StartDirectory   Point = "start.directory"   // nothing is where the session's directory goes
	StartSpawned     Point = "start.spawned"     // the monitor has the session's directory
	StartPrepared    Point = "start.prepared"    // its resources exist
	StartReservation Point = "start.reservation" // room for the receipt is held
	StartStarting    Point = "start.starting"    // "starting" is durable
	StartLaunched    Point = "start.launched"    // the blocked process tree exists
	StartRunning     Point = "start.running"     // "running" is durable
	StartReleased    Point = "start.released"    // the harness runs
)

// Points of gloved's side of an end.
const (
	StopStopping     Point = "stop.stopping"     // "stopping" is durable
	StopAsked        Point = "stop.asked"        // the monitor has ended the session
	SettleBegun      Point = "settle.begun"      // the end is known, nothing is written
	SettleReceipt    Point = "settle.receipt"    // the receipt is durable
	SettleExited     Point = "settle.exited"     // "exited" is durable
	SettleFinished   Point = "settle.finished"   // the monitor has left
	CleanupBegun     Point = "cleanup.begun"     // nothing is removed
	CleanupRemoved   Point = "cleanup.removed"   // the directory is gone
	FailUndone       Point = "fail.undone"       // a failed start is undone, not recorded
	FailRecorded     Point = "fail.recorded"     // and recorded
	ReconcileAdopted Point = "reconcile.adopted" // a live session was taken over
	RecoverObserved  Point = "recover.observed"  // the lost process was looked at
	RecoverEmptied   Point = "recover.emptied"   // its group is gone
	RecoverRecorded  Point = "recover.recorded"  // its failure is durable
	SweepDirectories Point = "sweep.directories" // orphaned directories are gone
	SweepGroups      Point = "sweep.groups"      // orphaned groups are gone
)

// Points of a monitor.
const (
	GroundTaken      Point = "ground.taken"      // it has a directory, made ahead of need
	GroundLaid       Point = "ground.laid"       // and processes of a session to come
	MonitorListening Point = "monitor.listening" // it knows its session, and its socket is there
	AcquireReserve   Point = "acquire.reserve"   // room for the outcome is held
	AcquireProgram   Point = "acquire.executable"
	AcquireUser      Point = "acquire.user"
	AcquireGroup     Point = "acquire.cgroup"
	AcquireDisks     Point = "acquire.filesystems"
	AcquireScratch   Point = "acquire.scratch"
	AcquirePaths     Point = "acquire.runtime_paths"
	AcquireGrants    Point = "acquire.grants"
	LaunchProven     Point = "launch.proven"   // the profile was derived again
	LaunchTree       Point = "launch.tree"     // init and launch exist, confined
	LaunchTerminal   Point = "launch.terminal" // the terminal is drained
	LaunchWatched    Point = "launch.watched"  // all limits are watched
	ReleaseBegun     Point = "release.begun"   // the child is still blocked
	ReleaseDone      Point = "release.done"    // the harness runs
	EndExited        Point = "end.exited"      // the harness is gone
	EndDrained       Point = "end.drained"     // all its output was read
	EndOutcome       Point = "end.outcome"     // transcript and outcome are durable
	EndReleased      Point = "end.released"    // its resources are given back
	EndTold          Point = "end.told"        // gloved was told
	UndoBegun        Point = "undo.begun"      // a start is about to be undone
	UndoDone         Point = "undo.done"       // it is
)

// Points of a journal that puts itself away; their scope is the journal's path.
const (
	RotateBegun     Point = "rotate.begun"     // the new file exists, empty and without a name
	RotateWritten   Point = "rotate.written"   // it is whole and durable
	RotateNamed     Point = "rotate.named"     // it bears the archive's name
	RotateExchanged Point = "rotate.exchanged" // it is the journal, and the old one the archive
	RotateDone      Point = "rotate.done"      // and that is durable
)

// Start, Monitor and End list the points in the order they are passed: those
// of gloved while it starts a session, those of a session's monitor, those of
// gloved while a session ends or is recovered.
var (
	Start = []Point{StartReserved, StartDirectory, StartSpawned, StartPrepared,
		StartReservation, StartStarting, StartLaunched, StartRunning, StartReleased}
	Ground  = []Point{GroundTaken, GroundLaid}
	Acquire = []Point{AcquireReserve, AcquireProgram, AcquireUser, AcquireGroup, AcquireDisks,
		AcquireScratch, AcquirePaths, AcquireGrants}
	Launch = []Point{LaunchProven, LaunchTree, LaunchTerminal, LaunchWatched, ReleaseBegun}
	Ending = []Point{EndExited, EndDrained, EndOutcome, EndReleased, EndTold}
	Settle = []Point{SettleBegun, SettleReceipt, SettleExited, SettleFinished}
	Rotate = []Point{RotateBegun, RotateWritten, RotateNamed, RotateExchanged, RotateDone}
)

// All lists every point there is.
var All = slices.Concat(Start, Ground, []Point{MonitorListening}, Acquire, Launch, []Point{ReleaseDone}, Ending,
	[]Point{UndoBegun, UndoDone, FailUndone, FailRecorded, StopStopping, StopAsked}, Settle,
	[]Point{CleanupBegun, CleanupRemoved}, Rotate, []Point{ReconcileAdopted, RecoverObserved, RecoverEmptied, RecoverRecorded,
		SweepDirectories, SweepGroups})
