package vm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// powerPackage holds the guest's side, TestPowerLoss.
	powerPackage = "runtime"
	// cutsVariable asks for a number of cuts; without it there are longCuts if there is time for
	// full runs, and otherwise as many as fit into shortTime, but no more than shortCuts. A plain
	// "go test", which has brief for all of this package, gets fewCuts.
	cutsVariable = "GLOVE_VM_CUTS"
	longCuts     = 120
	shortCuts    = 24
	fewCuts      = 4
	brief        = 10 * time.Minute
	shortTime    = 200 * time.Second
	// seedVariable repeats the choices of an earlier run.
	seedVariable = "GLOVE_VM_SEED"
	// machines are how many guests lose their power side by side.
	machines = 2
	oneBoot  = 4 * time.Minute
)

// A powerPlan says what one boot does and where it is cut. The guest has its own words for it.
type powerPlan struct {
	// Was is the point of the last cut of the work, if it was at one.
	Was, Kind, Boot, Work, Fail string

	// bootWrites and workWrites cut at the nth write or flush after the guest has come up, or has
	// put in order what the cut before left: where no crash point is.
	bootWrites, workWrites int
}

func (p powerPlan) String() string {
	switch {
	case p == powerPlan{Was: p.Was}:
		return "no cut"
	case p.Boot != "":
		return "recovery, " + p.Boot
	case p.Work != "":
		return p.Kind + ", " + p.Work
	case p.bootWrites > 0:
		return fmt.Sprintf("recovery, disk command %d", p.bootWrites)
	default:
		return fmt.Sprintf("%s, disk command %d", p.Kind, p.workWrites)
	}
}

// powerPoints are the crash points, by what a machine does to pass them.
func powerPoints() (plans []powerPlan) {
	at := func(kind, fail string, points ...string) {
		for _, p := range points {
			plans = append(plans, powerPlan{Kind: kind, Fail: fail, Work: p})
		}
	}
	at("run", "", "start.reserved", "start.directory", "start.spawned", "start.prepared", "start.reservation",
		"start.starting", "start.launched", "start.running", "start.released",
		"monitor.listening", "acquire.reserve", "acquire.executable", "acquire.user", "acquire.cgroup", "acquire.filesystems",
		"acquire.scratch", "acquire.runtime_paths",
		"launch.proven", "launch.tree", "launch.terminal", "launch.watched", "release.begun", "release.done",
		"end.exited", "end.drained", "end.outcome", "end.released", "end.told",
		"settle.begun", "settle.receipt", "settle.exited", "settle.finished", "cleanup.begun", "cleanup.removed")
	at("copy", "", "acquire.grants")
	at("stop", "", "stop.stopping", "stop.asked")
	at("rotate", "", "rotate.begun", "rotate.written", "rotate.named", "rotate.exchanged", "rotate.done")
	at("adopt", "", "reconcile.adopted")
	at("fail", "launch.terminal", "undo.begun", "undo.done", "fail.undone", "fail.recorded")
	return plans
}

// powerChains are cuts that follow on each other: a recovery that is cut itself.
var powerChains = [][]powerPlan{
	{{Kind: "run", Work: "start.launched"}, {Boot: "recover.observed"}, {Boot: "recover.emptied"}, {Boot: "recover.recorded"}},
	{{Kind: "run", Work: "start.spawned"}, {Boot: "sweep.directories"}, {Boot: "sweep.groups"}},
	{{Kind: "run", Work: "end.outcome"}, {Boot: "settle.receipt"}},
}

// powerPlans makes n cuts, or a few more, for each machine out of a seed: chains, points and disk
// commands, mixed.
func powerPlans(n int, random *rand.Rand) (plans [machines][]powerPlan) {
	points := powerPoints()
	random.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	kinds := []string{"run", "copy", "stop", "adopt", "fail", "rotate"}
	for i := 0; i < n; i++ {
		m := i % machines
		var group []powerPlan
		switch turn := i / machines; {
		case turn%2 == 0 && len(points) > 0:
			group, points = points[:1], points[1:]
		case turn%8 == 1:
			group = powerChains[(turn/8*machines+m)%len(powerChains)]
		case turn%8 == 5:
			group = []powerPlan{{bootWrites: 1 + random.IntN(60)}}
		default:
			plan := powerPlan{Kind: kinds[random.IntN(len(kinds))], workWrites: 1 + random.IntN(150)}
			if plan.Kind == "fail" {
				plan.Fail = "launch.terminal"
			}
			group = []powerPlan{plan}
		}
		plans[m] = append(plans[m], group...)
	}
	for m := range plans {
		plans[m] = plans[m][:min(len(plans[m]), (n+machines-1)/machines)]
	}
	return plans
}

// A powerNote is what the guest tells; TestPowerLoss has the same.
type powerNote struct {
	What, ID, State, Cause, Plan, Profile, HMAC string
	Seq                                         uint64
}

// A claim is what was acknowledged of one session, and so must never be otherwise again.
type claim struct {
	plan, profile, state, cause, hmac string
	clean                             bool
}

// A ledger holds what a guest acknowledged, outside of it.
type ledger struct {
	claims map[string]*claim

	// What the present boot has shown.
	sessions, receipts map[string]powerNote
	directories        map[string]bool
	recovered          string
	acknowledged       int
	said               []string // this and in the boot before
}

// settled are the lines that say nothing when something fails: what has long ended.
var settled = regexp.MustCompile(`"What":"(receipt|session".*"State":"(exited|failed))"`)

func (l *ledger) claim(id string) *claim {
	if l.claims[id] == nil {
		l.claims[id] = &claim{}
	}
	return l.claims[id]
}

// take notes what the guest says, and returns what contradicts what it said before.
func (l *ledger) take(n powerNote) error {
	switch n.What {
	case "boot":
		l.sessions, l.receipts, l.directories = map[string]powerNote{}, map[string]powerNote{}, map[string]bool{}
		l.recovered = ""
	case "session":
		l.sessions[n.ID] = n
	case "receipt":
		if _, twice := l.receipts[n.ID]; twice {
			return fmt.Errorf("session %s has two receipts", n.ID)
		}
		l.receipts[n.ID] = n
	case "directory":
		l.directories[n.ID] = true
	case "listed":
		return l.check()
	case "recovered":
		l.recovered = strings.TrimSpace(n.State + " " + n.Cause)
	case "created":
		l.claim(n.ID).plan = n.Plan
		l.acknowledged++
	case "started":
		l.claim(n.ID).profile = n.Profile
		l.acknowledged++
	case "ended":
		c := l.claim(n.ID)
		c.state, c.cause, c.hmac = n.State, n.Cause, n.HMAC
		l.acknowledged++
	case "cleaned":
		l.claim(n.ID).clean = true
		l.acknowledged++
	}
	return nil
}

// check compares what a cut left with what was acknowledged before it.
func (l *ledger) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for id, c := range l.claims {
		s, found := l.sessions[id]
		switch {
		case !found:
			wrong("session %s was acknowledged and is lost", id)
		case s.State == "archived":
			if c.state == "" {
				wrong("session %s is archived and its end was not acknowledged", id)
			}
		case c.plan != "" && s.Plan != c.plan:
			wrong("session %s has another plan", id)
		case c.profile != "" && (s.Profile != c.profile || s.State == "created" || s.State == "preparing" || s.State == "starting"):
			wrong("session %s was started and is %s, with the profile %q", id, s.State, s.Profile)
		case c.state != "" && (s.State != c.state || s.Cause != c.cause):
			wrong("session %s was %s %s and is %s %s", id, c.state, c.cause, s.State, s.Cause)
		}
		if r := l.receipts[id]; c.hmac != "" && r.HMAC != c.hmac {
			wrong("session %s had the receipt %q and has %q", id, c.hmac, r.HMAC)
		}
		if c.clean && l.directories[id] {
			wrong("session %s was cleaned up and its directory is there again", id)
		}
	}
	for id := range l.receipts {
		if _, found := l.sessions[id]; !found {
			wrong("there is a receipt of session %s, which is not there", id)
		}
	}
	return errors.Join(errs...)
}

// TestPower takes the power from machines in the middle of their work: at each crash point of a
// session's life, and at any command of their disk, which then forgets some of what it was not told
// to flush. After each cut the same disk boots again: everything that was acknowledged before the cut
// is there, as the test has noted it outside; the journals verify; every session is where CRASHES.md
// says, or goes on with the same key; nothing is left over; and a new session runs.
func TestPower(t *testing.T) {
	ownStage(t)
	prepare(t)
	binary := build(t, powerPackage)
	if binary == "" {
		return
	}
	count, until := powerCount(t)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(seedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d cuts at most; %s=%d", count, seedVariable, seed)
	plans := powerPlans(count, rand.New(rand.NewPCG(seed, 0)))
	results := make([]powerResult, machines)
	t.Run("machine", func(t *testing.T) {
		for m := range machines {
			t.Run(strconv.Itoa(m), func(t *testing.T) {
				t.Parallel()
				results[m] = cutAll(t, binary, plans[m], seed+uint64(m), until)
			})
		}
	})
	var sum powerResult
	for _, r := range results {
		sum.add(r)
	}
	for _, row := range slices.Sorted(maps.Keys(sum.rows)) {
		t.Logf("| %s | %s |", row, strings.Join(slices.Sorted(maps.Keys(sum.rows[row])), ", "))
	}
	t.Logf("summary: %s", sum)
	if sum.cuts == 0 {
		t.Error("no cut was made")
	}
	if sum.cuts > 0 && sum.flushes == 0 {
		t.Error("the guests never flushed: they do not know of the disk's cache")
	}
}

// powerCount says how many cuts to make, and when to make no more.
func powerCount(t *testing.T) (count int, until time.Time) {
	t.Helper()
	deadline, bounded := t.Deadline()
	until = time.Now().Add(24 * time.Hour)
	if bounded {
		until = deadline.Add(-oneBoot)
	}
	if s := os.Getenv(cutsVariable); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < machines {
			t.Fatalf("%s=%s", cutsVariable, s)
		}
		return n, until
	}
	if bounded && time.Until(deadline) < full {
		if short := time.Now().Add(shortTime); short.Before(until) {
			until = short
		}
		if time.Until(deadline) <= brief {
			return fewCuts, until
		}
		return shortCuts, until
	}
	return longCuts, until
}

type powerResult struct {
	cuts, acknowledged, lost, kept, writes, flushes int

	rows map[string]map[string]bool
}

func (r *powerResult) add(o powerResult) {
	r.cuts, r.acknowledged, r.lost, r.kept = r.cuts+o.cuts, r.acknowledged+o.acknowledged, r.lost+o.lost, r.kept+o.kept
	r.writes, r.flushes = r.writes+o.writes, r.flushes+o.flushes
	if r.rows == nil {
		r.rows = map[string]map[string]bool{}
	}
	for k, v := range o.rows {
		if r.rows[k] == nil {
			r.rows[k] = map[string]bool{}
		}
		maps.Copy(r.rows[k], v)
	}
}

func (r powerResult) String() string {
	return fmt.Sprintf("%d power cuts, %d acknowledgements held; %d writes and %d flushes; of what was not flushed at a cut %d blocks were lost and %d kept",
		r.cuts, r.acknowledged, r.writes, r.flushes, r.lost, r.kept)
}

// cutAll makes a machine's cuts, one boot each, and one boot more after the last.
func cutAll(t *testing.T, binary string, plans []powerPlan, seed uint64, until time.Time) powerResult {
	d := newDisk(t, seed)
	l := &ledger{claims: map[string]*claim{}}
	out := powerResult{rows: map[string]map[string]bool{}}
	last := powerPlan{}
	for i := 0; !t.Failed(); i++ {
		plan, end := powerPlan{}, i == len(plans) || time.Now().After(until)
		if !end {
			plan = plans[i]
			if plan.Kind == "" {
				plan.Kind = "run"
			}
		}
		switch {
		case last.Boot != "": // a recovery that was cut, of what had been cut before
			plan.Was = last.Was
		default:
			plan.Was = last.Work
		}
		cut := powerBoot(t, d, l, binary, plan)
		if point := last.Boot + last.Work; point != "" && l.recovered != "" {
			if out.rows[point] == nil {
				out.rows[point] = map[string]bool{}
			}
			out.rows[point][l.recovered] = true
		}
		t.Logf("boot %d of %d: %v; the last cut left %s", i+1, len(plans)+1, plan, l.recovered)
		if t.Failed() {
			t.Logf("cut %d, %v, after %v", i, plan, last)
		}
		if end {
			break
		}
		if cut {
			out.cuts++
		}
		last = plan
	}
	out.acknowledged = l.acknowledged
	d.mu.Lock()
	defer d.mu.Unlock()
	out.lost, out.kept, out.writes, out.flushes = d.commands.lost, d.commands.kept, d.commands.writes, d.commands.flushes
	return out
}

// powerBoot boots once, to the cut or, without a plan, to the guest's own end.
func powerBoot(t *testing.T, d *disk, l *ledger, binary string, plan powerPlan) (cut bool) {
	order, err := json.Marshal(map[string]string{"Was": plan.Was, "Kind": plan.Kind, "Boot": plan.Boot, "Work": plan.Work, "Fail": plan.Fail})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), oneBoot)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "./lane", "--timeout", seconds(oneBoot-2*grace), "--nbd", d.socket, "--memory", "512",
		"--env", "GLOVE_POWER="+string(order), "--", binary, "-test.v", "-test.run", "^TestPowerLoss$", "-test.timeout", (oneBoot - 3*grace).String())
	said := &bounded{}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the lane kills the guest
	cmd.WaitDelay = grace
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Dir(d.socket))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	done, ready, on := false, false, false
	l.said = append(l.said[:0:0], l.said[slices.Index(l.said, "")+1:]...)
	l.said = append(l.said, "")
	handle := func(line string) {
		if !settled.MatchString(line) {
			l.said = append(l.said, line)
		}
		switch {
		case line == diskOn:
			on, cut = true, false
			return
		case line == diskOff:
			cut = on
			return
		case line == "cut":
			return
		case strings.HasPrefix(line, "disk:"):
			t.Error(line)
			return
		}
		var n powerNote
		if err := json.Unmarshal([]byte(line), &n); err != nil {
			t.Errorf("the guest says %q: %v", line, err)
			return
		}
		switch n.What {
		case "boot":
			d.after(plan.bootWrites)
		case "ok":
			ready = true
		case "go":
			d.after(plan.workWrites)
		case "done":
			done = true
		}
		if err := l.take(n); err != nil {
			t.Error(err)
		}
	}
	for running := true; running; {
		select {
		case line := <-d.notes:
			handle(line)
			if cut {
				cancel()
			}
		case err = <-ended:
			running = false
		}
	}
	for more := true; more; {
		select {
		case line := <-d.notes:
			handle(line)
		default:
			more = false
		}
	}
	switch {
	case cut && plan.Work != "" && (done || !ready), cut && plan.Boot != "" && ready:
		t.Errorf("the point was not passed: ready %v, done %v", ready, done)
	case cut:
	case plan.Kind == "" && err == nil && ready:
		return false
	default:
		t.Errorf("the guest ended: %v", err)
	}
	if t.Failed() {
		t.Logf("the guest said:\n%s\nand on the line, in the boot before and this:\n%s", said, strings.Join(l.said, "\n"))
	}
	return cut
}

// bounded keeps the end of what is written to it.
type bounded struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Write(p)
	if over := b.buf.Len() - 64<<10; over > 0 {
		b.buf.Next(over)
	}
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
