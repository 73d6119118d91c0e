package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
)

// This is the guest's side of integration/vm's TestPower, which takes the power
// from a whole machine at each crash point and between any two writes of its
// disk. One boot is one run of TestPowerLoss: it finds what the cut before it
// left, puts that in order, shows that all is well, and works on until the next.
const (
	powerDir     = "/var/lib/test/power" // on the disk that loses its power
	powerArmed   = "/run/gloved-power"   // and not on it: a file for each armed point
	powerDisk    = "/dev/vda"
	powerLineAt  = 63 << 20 // behind the file system: what is written there is a line to the test
	powerOrder   = "GLOVE_POWER"
	powerCommand = "[ -e /workspace/long ] && ! touch /workspace/mine 2>/dev/null && { echo up; sleep 1000; }; echo out"
)

// A powerPlan is what one boot is to do; TestPower sends it.
type powerPlan struct {
	Was  string // the point of the last cut of the work, if it was at one
	Kind string // what to work on after all is in order: a kind of powerWork; "" ends the boot
	Boot string // the point to cut at while that is put in order
	Work string // the point to cut at afterwards
	Fail string // and the point that fails then
}

// A powerNote is what the guest tells the test. The test keeps it, and holds the
// next boots to what was acknowledged.
type powerNote struct {
	What    string // boot session receipt directory listed recovered ok go created started ended cleaned done
	ID      string `json:",omitempty"`
	State   string `json:",omitempty"`
	Cause   string `json:",omitempty"`
	Plan    string `json:",omitempty"`
	Profile string `json:",omitempty"`
	HMAC    string `json:",omitempty"`
	Seq     uint64 `json:",omitempty"`
}

// powerLine writes to the test, in order with all writes of the disk.
func powerLine(line string) error {
	f, err := os.OpenFile(powerDisk, os.O_WRONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(page) }()
	for rest := line + "\n"; rest != ""; {
		clear(page)
		rest = rest[copy(page, rest):]
		if _, err := f.WriteAt(page, powerLineAt); err != nil {
			return err
		}
	}
	return nil
}

// crashWithPower does at a crash point what is armed there. A cut does not
// return: the disk does not answer any more, and the machine is gone soon.
func crashWithPower(p crashpoint.Point) error {
	armed := filepath.Join(powerArmed, string(p))
	action, err := os.ReadFile(armed)
	if err != nil || os.Remove(armed) != nil {
		return nil
	}
	if string(action) == "fail" {
		return syscall.EIO
	}
	return powerLine("cut")
}

type powerRun struct {
	*world
	t    *testing.T
	plan powerPlan
}

// TestPowerLoss is one boot of a machine whose power fails.
func TestPowerLoss(t *testing.T) {
	order := os.Getenv(powerOrder)
	if order == "" {
		return // it is for the guest of integration/vm, where TestPower takes it
	}
	r := &powerRun{t: t}
	must(t, strictjson.Decode([]byte(order), &r.plan, strictjson.Limits{}))
	must(t, os.Mkdir(powerArmed, 0o700))
	r.firstBoot()
	r.tell(powerNote{What: "boot"})
	r.arm("cut", r.plan.Boot)
	r.verified(journal.StatusClean, journal.StatusTorn)
	r.world.open()
	t.Cleanup(r.world.close)
	r.show()
	r.restore()
	if r.plan.Kind == "" {
		return
	}
	r.tell(powerNote{What: "go"})
	r.arm("cut", r.plan.Work)
	r.arm("fail", r.plan.Fail)
	for range 3 {
		r.work()
	}
	r.tell(powerNote{What: "done"})
	must(t, powerLine("cut"))
}

func (r *powerRun) tell(notes ...powerNote) {
	var lines []string
	for _, n := range notes {
		line, err := json.Marshal(n)
		must(r.t, err)
		lines = append(lines, string(line))
	}
	must(r.t, powerLine(strings.Join(lines, "\n")))
}

func (r *powerRun) arm(action, point string) {
	if point != "" {
		must(r.t, os.WriteFile(filepath.Join(powerArmed, point), []byte(action), 0o600))
	}
}

// firstBoot makes the state, durably, or takes that of the boots before.
func (r *powerRun) firstBoot() {
	t := r.t
	ready := filepath.Join(powerDir, "ready")
	if _, err := os.Stat(ready); err == nil {
		r.world = &world{t: t, dir: powerDir}
		r.load()
		return
	}
	must(t, os.RemoveAll(powerDir))
	must(t, os.Mkdir(powerDir, 0o700))
	r.world = newWorldAt(t, powerDir, generous, "/bin/sh", "-c", powerCommand)
	must(t, os.WriteFile(r.path("work/long"), nil, 0o644))
	r.trust()
	r.world.close()
	must(t, os.WriteFile(ready, nil, 0o600))
	unix.Sync()
}

// show tells the test all that the cut left, as it is found.
func (r *powerRun) show() {
	var all []powerNote
	records, err := r.store.List()
	must(r.t, err)
	for _, rec := range records {
		e := endOf(rec)
		all = append(all, powerNote{What: "session", ID: rec.SessionID, State: string(e.state), Cause: e.what,
			Plan: rec.PlanContentDigest, Profile: rec.ProfileDigest})
	}
	newest := 0
	for _, rec := range records {
		newest = max(newest, number(rec.SessionID))
	}
	for n := 1; n < newest; n++ {
		if id := fmt.Sprintf("s%d", n); r.archived(id) {
			all = append(all, powerNote{What: "session", ID: id, State: "archived"})
		}
	}
	for _, v := range r.envelopes() {
		all = append(all, powerNote{What: "receipt", ID: v.SessionID, Seq: v.Sequence, HMAC: v.ThisHMAC})
	}
	for _, name := range r.left() {
		all = append(all, powerNote{What: "directory", ID: dirID(name)})
	}
	r.tell(append(all, powerNote{What: "listed"})...)
}

// dirID is the session of a directory in the root.
func dirID(name string) string {
	_, id, _ := strings.Cut(strings.TrimPrefix(name, dirPrefix), "-")
	return id
}

func (r *powerRun) left() (names []string) {
	entries, err := os.ReadDir(r.path("root"))
	must(r.t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), dirPrefix) {
			names = append(names, e.Name())
		}
	}
	return names
}

func (r *powerRun) envelopes() (all []receipt.Envelope) {
	for anchor := receipt.Genesis(r.receipts.KeyID()); ; {
		page, err := r.receipts.Page(r.t.Context(), anchor, 1000)
		must(r.t, err)
		all = append(all, page.Envelopes...)
		if !page.HasMore {
			return all
		}
		last := all[len(all)-1]
		anchor = receipt.Anchor{KeyID: last.KeyID, Sequence: last.Sequence, HeadHMAC: last.ThisHMAC}
	}
}

// restore is the next gloved's start, over what the cut left, as recoverAll is
// it for a crash of processes.
func (r *powerRun) restore() {
	t := r.t
	started, err := r.store.List()
	must(t, err)
	r.trust()
	if i := r.Issues(); len(i) != 0 || r.NotReady() != "" {
		t.Errorf("issues %v, not ready: %q", i, r.NotReady())
	}
	records, err := r.store.List()
	must(t, err)
	slices.SortFunc(records, func(a, b session.Record) int { return number(a.SessionID) - number(b.SessionID) })
	if len(records) != len(started) {
		t.Errorf("%d sessions, and then %d", len(started), len(records))
	}
	for n, rec := range records {
		if last := n == len(records)-1; last {
			r.expected(rec)
			r.repeat(rec)
		} else if !rec.State.Terminal() {
			r.repeat(rec)
		}
	}
	r.receiptsMatch()
	for _, name := range r.left() {
		id := dirID(name)
		_, err := r.Cleanup(t.Context(), id)
		must(t, err)
		r.tell(powerNote{What: "cleaned", ID: id})
	}
	rec := r.create(r.grant("copy"))
	r.tell(powerNote{What: "created", ID: rec.SessionID, Plan: rec.PlanContentDigest})
	_, err = r.start(rec)
	must(t, err)
	if out, rec := r.finish(rec.SessionID); out != "out\r\n" || endOf(rec) != exitedEnd {
		t.Errorf("the next session is %v and says %q", endOf(rec), out)
	}
	r.ended(rec.SessionID)
	r.clean(rec.SessionID)
	r.world.close()
	r.verified(journal.StatusClean)
	r.bare()
	r.world.open()
	r.trust()
	if t.Failed() {
		t.FailNow() // and no more of it
	}
	r.tell(powerNote{What: "ok"})
}

// expected checks what became of the session that was on its way when the power
// went: what CRASHES.md says, if it went at a point.
func (r *powerRun) expected(rec session.Record) {
	got := endOf(rec)
	r.tell(powerNote{What: "recovered", ID: rec.SessionID, State: string(got.state), Cause: got.what})
	if want := endsOf(crashpoint.Point(r.plan.Was), diesPower); r.plan.Was != "" && !slices.Contains(want, got) {
		r.t.Errorf("after a cut at %s the session is %v, want one of %v", r.plan.Was, got, want)
	}
}

// repeat asks again for what may have been acknowledged: the answer is the same,
// or the start that was not finished is made now.
func (r *powerRun) repeat(rec session.Record) {
	t := r.t
	before := endOf(rec)
	r.createdAgain(rec)
	again, err := r.start(rec)
	switch {
	case rec.State.Terminal() && (err != nil || endOf(again) != before):
		t.Errorf("start %s again: %v, %v, was %v", rec.SessionID, endOf(again), err, before)
	case rec.State.Terminal():
		if again, err := r.Stop(t.Context(), "stop-"+rec.SessionID, rec.SessionID); err != nil || endOf(again) != before {
			t.Errorf("stop %s again: %v, %v, was %v", rec.SessionID, endOf(again), err, before)
		}
	case err != nil:
		t.Errorf("start %s, which is %v: %v", rec.SessionID, before, err)
	default:
		if _, err := policy.DecodePlan(rec.Plan); err != nil {
			t.Errorf("the plan of %s: %v", rec.SessionID, err)
		}
		if r.long(rec) {
			_, err := r.Stop(t.Context(), "stop-"+rec.SessionID, rec.SessionID)
			must(t, err)
		}
		if _, rec := r.finish(rec.SessionID); rec.State != session.Exited {
			t.Errorf("after the retry %s is %v", rec.SessionID, endOf(rec))
		}
	}
	r.ended(rec.SessionID)
}

// long reports that a session runs until it is stopped.
func (r *powerRun) long(rec session.Record) bool {
	plan, err := policy.DecodePlan(rec.Plan)
	must(r.t, err)
	return len(plan.PathGrants) > 0 && plan.PathGrants[0].Access == policy.AccessRead
}

// receiptsMatch checks that a session has exactly one receipt if it has exited,
// and none if it has not.
func (r *powerRun) receiptsMatch() {
	count := map[string]int{}
	for _, v := range r.envelopes() {
		count[v.SessionID]++
	}
	records, err := r.store.List()
	must(r.t, err)
	for _, rec := range records {
		want := 0
		if rec.State == session.Exited {
			want = 1
		}
		if !rec.State.Terminal() || count[rec.SessionID] != want {
			r.t.Errorf("session %s is %v and has %d receipts", rec.SessionID, endOf(rec), count[rec.SessionID])
		}
		delete(count, rec.SessionID)
	}
	maps.DeleteFunc(count, func(id string, n int) bool { return n == 1 && r.archived(id) })
	if len(count) != 0 {
		r.t.Errorf("receipts of nobody: %v", count)
	}
}

// bare waits until nothing of any session is on the machine.
func (r *powerRun) bare() {
	now := r.inventory()
	r.same(inventory{files: []string{".lock"}, fds: now.fds})
	if names := r.left(); len(names) != 0 {
		r.t.Errorf("left in the root: %q", names)
	}
}

// ended tells that the end of a session was acknowledged.
func (r *powerRun) ended(id string) {
	rec, err := r.store.Get(id)
	must(r.t, err)
	n := powerNote{What: "ended", ID: id, State: string(rec.State), Cause: endOf(rec).what, Profile: rec.ProfileDigest}
	if rec.State == session.Exited {
		env := r.envelope(rec)
		n.HMAC, n.Seq = env.ThisHMAC, env.Sequence
	}
	r.tell(n)
}

func (r *powerRun) clean(id string) {
	_, err := r.Cleanup(r.t.Context(), id)
	must(r.t, err)
	if _, err := os.Lstat(filepath.Join(r.path("root"), dirName(id))); !errors.Is(err, fs.ErrNotExist) {
		r.t.Errorf("cleaned up and there: %v", err)
	}
	r.tell(powerNote{What: "cleaned", ID: id})
}

// work takes one session through its life, and tells what is acknowledged.
func (r *powerRun) work() {
	t := r.t
	var grants []policy.AliasGrant
	switch r.plan.Kind {
	case "stop", "adopt":
		grants = append(grants, r.grant("read")) // where it finds that it is to run long
	case "copy":
		grants = append(grants, r.grant("copy"))
	}
	rec := r.create(grants...)
	r.tell(powerNote{What: "created", ID: rec.SessionID, Plan: rec.PlanContentDigest})
	started, err := r.start(rec)
	if r.plan.Kind == "fail" {
		r.failed(rec, err)
		return
	}
	must(t, err)
	r.tell(powerNote{What: "started", ID: rec.SessionID, Profile: started.ProfileDigest})
	if len(grants) > 0 && r.plan.Kind != "copy" {
		if _, err := r.Read(t.Context(), rec.SessionID, 0, 1, 30*time.Second); err != nil {
			t.Errorf("read: %v", err)
		}
		if r.plan.Kind == "adopt" {
			r.world.close()
			r.world.open()
			r.trust()
		}
		_, err := r.Stop(t.Context(), "stop-"+rec.SessionID, rec.SessionID)
		must(t, err)
	}
	r.finish(rec.SessionID)
	r.ended(rec.SessionID)
	r.clean(rec.SessionID)
	if r.plan.Kind == "rotate" {
		must(t, r.rotate(rec.SessionID))
	}
}

// archived reports that a session went to an archive of the store.
func (r *powerRun) archived(id string) bool {
	_, err := r.store.Get(id)
	return session.CodeOf(err) == session.Archived
}

// failed goes on after a start that was armed to fail: a later round's does not.
func (r *powerRun) failed(rec session.Record, err error) {
	now, getErr := r.store.Get(rec.SessionID)
	must(r.t, getErr)
	if err == nil {
		_, now = r.finish(rec.SessionID)
	}
	if now.State.Terminal() {
		r.ended(rec.SessionID)
		r.clean(rec.SessionID)
	}
}
