package runtime

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"gloved.dev/internal/crashpoint"
)

// The victims of a crash. A monitor that dies takes its init with it.
const (
	diesGloved = 1 << iota
	diesMonitor
	diesInit
	diesPower // all of the machine, and what its disk had not been told to flush
)

// victims are the columns of the crash table.
var victims = []struct {
	who  int
	name string
}{
	{diesGloved, "gloved"}, {diesMonitor, "monitor"}, {diesInit, "init"},
	{diesGloved | diesMonitor, "gloved, monitor"}, {diesGloved | diesInit, "gloved, init"},
	{diesGloved | diesMonitor | diesInit, "all three"}, {diesPower, "power"},
}

// A crashRow says what the record of a session may say after a crash, for the
// victims in the order of the columns. Nothing is expected of what cannot be
// there to be killed.
type crashRow struct {
	points []crashpoint.Point
	note   string
	ends   [7][]end
}

var (
	toRetry  = []end{waitingEnd}
	early    = []end{createdEnd, waitingEnd}
	unused   = []end{exitedEnd, waitingEnd} // another takes its place, or the start is tried again
	lost     = []end{lostEnd, killedEnd}
	gone     = []end{lostEnd} // without a process of which more could be known
	done     = []end{exitedEnd}
	stopped  = []end{signaledEnd}
	noLaunch = []end{launchEnd}
	// init's death is the supervisor's error: with a receipt, or without if gloved
	// gave the start up before.
	noInit   = []end{brokenEnd, errorEnd}
	noInitUp = []end{launchEnd, brokenEnd, errorEnd}
	noInitAt = []end{signaledEnd, brokenEnd} // while it is stopped
	// An init that dies before it is needed is made anew, if that is noticed before.
	newInit = []end{exitedEnd, launchEnd}
)

func points(p ...crashpoint.Point) []crashpoint.Point { return p }

// outcomes is the crash table: every crash point, and what each crash leads to.
var outcomes = []crashRow{
	{points(crashpoint.StartReserved, crashpoint.StartDirectory), "there is no monitor yet",
		[7][]end{toRetry, nil, nil, nil, nil, nil, toRetry}},
	{points(crashpoint.StartSpawned), "",
		[7][]end{toRetry, toRetry, nil, toRetry, nil, nil, toRetry}},
	{points(crashpoint.StartPrepared, crashpoint.StartReservation), "init is there ahead, and made anew if it is seen to be gone",
		[7][]end{toRetry, noLaunch, newInit, toRetry, toRetry, toRetry, toRetry}},
	{points(crashpoint.StartStarting), "\"starting\" is durable",
		[7][]end{gone, noLaunch, newInit, gone, gone, gone, gone}},
	{points(crashpoint.StartLaunched), "the tree exists and is held back",
		[7][]end{gone, lost, noInit, gone, gone, gone, gone}},
	{points(crashpoint.StartRunning), "\"running\" is durable, nothing was let go",
		[7][]end{lost, lost, noInit, lost, lost, lost, gone}},
	{points(crashpoint.StartReleased), "the harness runs, and goes on without gloved",
		[7][]end{done, lost, noInit, lost, noInit, lost, gone}},

	{points(crashpoint.GroundTaken), "made ahead of need, or by the start",
		[7][]end{early, unused, nil, early, nil, nil, nil}},
	{points(crashpoint.GroundLaid), "",
		[7][]end{early, unused, newInit, early, early, early, nil}},
	{points(crashpoint.MonitorListening), "",
		[7][]end{toRetry, toRetry, nil, toRetry, nil, nil, toRetry}},
	{points(crashpoint.AcquireReserve, crashpoint.AcquireProgram), "",
		[7][]end{toRetry, toRetry, nil, toRetry, nil, nil, toRetry}},
	{points(crashpoint.AcquireUser, crashpoint.AcquireGroup, crashpoint.AcquireDisks, crashpoint.AcquireScratch,
		crashpoint.AcquirePaths, crashpoint.AcquireGrants), "",
		[7][]end{toRetry, toRetry, newInit, toRetry, toRetry, toRetry, toRetry}},
	{points(crashpoint.LaunchProven), "",
		[7][]end{gone, noLaunch, newInit, gone, gone, gone, gone}},
	{points(crashpoint.LaunchTree, crashpoint.LaunchTerminal, crashpoint.LaunchWatched), "",
		[7][]end{gone, noLaunch, noInitUp, gone, gone, gone, gone}},
	{points(crashpoint.ReleaseBegun), "the next gloved may find it held back",
		[7][]end{{exitedEnd, lostEnd, killedEnd}, lost, noInit, lost, {lostEnd, killedEnd, brokenEnd, errorEnd}, lost, gone}},
	{points(crashpoint.ReleaseDone), "",
		[7][]end{done, lost, noInit, lost, noInit, lost, gone}},
	{points(crashpoint.EndExited, crashpoint.EndDrained), "",
		[7][]end{done, lost, nil, lost, nil, nil, gone}},
	{points(crashpoint.EndOutcome, crashpoint.EndReleased, crashpoint.EndTold), "the outcome is durable",
		[7][]end{done, done, nil, done, nil, nil, done}},
	{points(crashpoint.UndoBegun, crashpoint.UndoDone), "a launch that failed",
		[7][]end{gone, noLaunch, nil, gone, nil, nil, gone}},
	{points(crashpoint.FailUndone), "", [7][]end{gone, nil, nil, nil, nil, nil, gone}},
	{points(crashpoint.FailRecorded), "", [7][]end{noLaunch, nil, nil, nil, nil, nil, noLaunch}},

	{points(crashpoint.StopStopping), "the next gloved stops it",
		[7][]end{stopped, lost, noInitAt, lost, noInitAt, lost, gone}},
	{points(crashpoint.StopAsked), "the monitor may have left", [7][]end{stopped, nil, nil, nil, nil, nil, stopped}},
	{points(crashpoint.SettleBegun, crashpoint.SettleReceipt, crashpoint.SettleExited), "",
		[7][]end{done, done, nil, done, nil, nil, done}},
	{points(crashpoint.SettleFinished, crashpoint.CleanupBegun, crashpoint.CleanupRemoved), "",
		[7][]end{done, nil, nil, nil, nil, nil, done}},
	{crashpoint.Rotate, "the session is carried forward, an older one archived",
		[7][]end{done, nil, nil, nil, nil, nil, done}},
	{points(crashpoint.ReconcileAdopted), "a session that runs",
		[7][]end{done, lost, noInit, lost, noInit, lost, gone}},
	{points(crashpoint.RecoverObserved, crashpoint.RecoverEmptied, crashpoint.RecoverRecorded, crashpoint.SweepDirectories,
		crashpoint.SweepGroups), "as if it had been recovered once",
		[7][]end{gone, nil, nil, nil, nil, nil, gone}},
}

// endsOf is what a crash of who at p may lead to.
func endsOf(p crashpoint.Point, who int) []end {
	for _, row := range outcomes {
		if slices.Contains(row.points, p) {
			return row.ends[slices.IndexFunc(victims, func(v struct {
				who  int
				name string
			}) bool {
				return v.who == who
			})]
		}
	}
	return nil
}

// tableBegin and tableEnd are the lines of CRASHES.md between which the table is.
const (
	tableFile  = "CRASHES.md"
	tableBegin = "<!-- crash table -->\n"
	tableEnd   = "<!-- end of the crash table -->\n"
	// updateVariable writes the table there instead of comparing it.
	updateVariable = "GLOVE_TEST_UPDATE"
)

// word is what the documentation calls an end.
func (e end) word() string {
	switch e {
	case createdEnd:
		return "created"
	case waitingEnd:
		return "preparing"
	case lostEnd, killedEnd:
		return "lost"
	case exitedEnd:
		return "exited"
	case signaledEnd:
		return "stopped"
	case launchEnd:
		return "launch failed"
	case brokenEnd, errorEnd:
		return "supervisor error"
	}
	return string(e.state) + " " + e.what
}

func renderOutcomes() string {
	var out strings.Builder
	out.WriteString("| Crash at | " + columns(func(i int) string { return victims[i].name }) + " | |\n")
	out.WriteString("|---|" + strings.Repeat("---|", len(victims)+1) + "\n")
	for _, row := range outcomes {
		names := make([]string, len(row.points))
		for i, p := range row.points {
			names[i] = "`" + string(p) + "`"
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", strings.Join(names, " "), columns(func(i int) string {
			var words []string
			for _, e := range row.ends[i] {
				if w := e.word(); !slices.Contains(words, w) {
					words = append(words, w)
				}
			}
			return strings.Join(words, " or ")
		}), row.note)
	}
	return out.String()
}

func columns(cell func(int) string) string {
	cells := make([]string, len(victims))
	for i := range victims {
		cells[i] = cell(i)
	}
	return strings.Join(cells, " | ")
}

// TestCrashTableIsDocumented holds CRASHES.md to the table that the crash tests
// go by. Run with GLOVE_TEST_UPDATE=1 to write it there.
func TestCrashTableIsDocumented(t *testing.T) {
	data, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), tableBegin)
	table, after, closed := strings.Cut(rest, tableEnd)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", tableFile)
	}
	want := "\n" + renderOutcomes() + "\n"
	if table == want {
		return
	}
	if os.Getenv(updateVariable) == "" {
		t.Fatalf("the table in %s is another; %s=1 writes it:\n%s", tableFile, updateVariable, want)
	}
	must(t, os.WriteFile(tableFile, []byte(before+tableBegin+want+tableEnd+after), 0o644))
}

// TestEveryPointIsInTheTable looks for crash points that nobody crashes at.
func TestEveryPointIsInTheTable(t *testing.T) {
	seen := map[crashpoint.Point]int{}
	for _, row := range outcomes {
		for _, p := range row.points {
			seen[p]++
		}
	}
	for _, p := range crashpoint.All {
		if seen[p] != 1 {
			t.Errorf("%s is in the table %d times", p, seen[p])
		}
		delete(seen, p)
	}
	if len(seen) != 0 {
		t.Errorf("in the table and no crash point: %v", seen)
	}
	if len(crashpoint.All) < 40 {
		t.Errorf("%d crash points", len(crashpoint.All))
	}
}
