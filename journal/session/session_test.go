package session_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/digest"
	"gloved.dev/journal"
	"gloved.dev/journal/session"
)

var (
	ctx   = context.Background()
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	plan  = []byte(`{"policy_revision":7,"schema_version":1}`)
	ctl   = strings.Repeat("a", 64)
	prof  = strings.Repeat("c", 64)
)

type rig struct {
	t     testing.TB
	path  string
	clock *clock.Fake
	o     session.Options
	s     *session.Store
}

func newRig(t testing.TB, o session.Options) *rig {
	t.Helper()
	d := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(d, 0o700); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, path: filepath.Join(d, "sessions.jsonl"), clock: clock.NewFake(start), o: o}
	r.o.Clock = r.clock
	r.open()
	t.Cleanup(func() { r.s.Close() })
	return r
}

func (r *rig) open() {
	r.t.Helper()
	s, err := session.Open(r.path, r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.s = s
}

func (r *rig) reopen() {
	r.t.Helper()
	if err := r.s.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.open()
}

func (r *rig) ms() uint64 { return uint64(r.clock.Now().UnixMilli()) }

func (r *rig) info() session.PlanInfo {
	return session.PlanInfo{PolicyRevision: 7, ExpiresAtMS: uint64(start.UnixMilli()) + 600_000}
}

func (r *rig) validate(time.Time) ([]byte, session.PlanInfo, error) { return plan, r.info(), nil }

func (r *rig) create(key, id string) (session.Record, error) {
	return r.s.Create(ctx, session.CreateRequest{IdempotencyKey: key, SessionID: id, ControllerPlanDigest: ctl, Plan: plan}, r.validate)
}

func (r *rig) auth(id string) session.Authorization {
	return session.Authorization{
		SchemaVersion: 1, AuthorizationID: "auth-" + id, SessionID: id, ControllerPlanDigest: ctl,
		PlanContentDigest: digest.SHA256Hex(plan), ApprovedAtMS: r.ms(), ExpiresAtMS: r.ms() + 60_000,
	}
}

func resolves(time.Time, session.Record) error { return nil }

type room struct{ session, controller, profile string }

func (b room) BoundTo(s, c, p string) bool { return b == room{s, c, p} }

func (r *rig) starting(key, id string) session.StartingRequest {
	return session.StartingRequest{
		IdempotencyKey: key, SessionID: id, AuthorizationID: "auth-" + id, ProfileDigest: prof,
		Cgroup:      &session.CgroupIdentity{Schema: 1, Dev: 30, Ino: 4711},
		Filesystem:  &session.FilesystemIdentity{Schema: 1, DiskLimitBytes: 8192, Partitions: []session.Partition{{Alias: "workspace", QuotaBytes: 4096}}},
		Monitor:     session.Monitor{"version": "1", "key_digest": prof},
		Reservation: room{id, ctl, prof},
	}
}

func process() session.ProcessIdentity {
	return session.ProcessIdentity{
		Schema: 1, PID: 4242, BootID: "01234567-89ab-cdef-0123-456789abcdef", StartTicks: 99,
		CgroupDev: 30, CgroupIno: 4711, CgroupPathDigest: strings.Repeat("d", 64),
	}
}

func (r *rig) request(key, id string) session.ProcessRequest {
	return session.ProcessRequest{IdempotencyKey: key, SessionID: id, Process: process()}
}

func terminal(id string, started, finished uint64) session.TerminalReference {
	code := int64(3)
	return session.TerminalReference{
		Kind: session.KindResource, Sequence: 1, KeyID: strings.Repeat("1", 64), SessionID: id, ControllerPlanDigest: ctl,
		ProfileDigest: prof, ReceiptDigest: strings.Repeat("2", 64), PreviousHMAC: strings.Repeat("0", 64),
		HMAC: strings.Repeat("3", 64), TerminationCause: "exited", StartedAtMS: started, FinishedAtMS: finished, ExitCode: &code,
	}
}

func confirmed(session.TerminalReference) error { return nil }

// to brings a new session to a state.
func (r *rig) to(id string, state session.State) session.Record {
	r.t.Helper()
	must := func(rec session.Record, err error) session.Record {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
		return rec
	}
	rec := must(r.create(id+".create", id))
	steps := []struct {
		state session.State
		do    func() (session.Record, error)
	}{
		{session.Preparing, func() (session.Record, error) { return r.s.ReserveStart(ctx, id+".reserve", r.auth(id), resolves) }},
		{session.Starting, func() (session.Record, error) { return r.s.MarkStarting(ctx, r.starting(id+".starting", id), resolves) }},
		{session.Running, func() (session.Record, error) { return r.s.MarkRunning(ctx, r.request(id+".running", id)) }},
		{session.Stopping, func() (session.Record, error) { return r.s.MarkStopping(ctx, r.request(id+".stopping", id)) }},
		{session.Exited, func() (session.Record, error) {
			return r.s.MarkExited(ctx, id+".exited", terminal(id, rec.RunningAtMS, r.ms()+5), confirmed)
		}},
	}
	for _, s := range steps {
		if rec.State == state {
			break
		}
		r.clock.Advance(time.Millisecond)
		rec = must(s.do())
	}
	if rec.State != state {
		r.t.Fatalf("reached %s, not %s", rec.State, state)
	}
	return rec
}

func TestLifeAndReplay(t *testing.T) {
	r := newRig(t, session.Options{})
	rec := r.to("s1", session.Exited)
	if rec.FinishedAtMS == 0 || *rec.Terminal.ExitCode != 3 || rec.ControllerDigestVerified {
		t.Errorf("%+v", rec)
	}
	all, err := r.s.List()
	if err != nil {
		t.Fatal(err)
	}
	r.reopen()
	again, err := r.s.List()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all, again); diff != "" {
		t.Error(diff)
	}
	// Every key still answers with the record as it was then.
	for key, want := range map[string]session.State{"create": session.Created, "running": session.Running, "stopping": session.Stopping} {
		var got session.Record
		switch key {
		case "create":
			got, err = r.create("s1.create", "s1")
		case "running":
			got, err = r.s.MarkRunning(ctx, r.request("s1.running", "s1"))
		case "stopping":
			got, err = r.s.MarkStopping(ctx, r.request("s1.stopping", "s1"))
		}
		if err != nil || got.State != want {
			t.Errorf("%s: %s, %v", key, got.State, err)
		}
	}
	if s := r.s.Stats(); s.Records != 6 || s.ReservedBytes != 0 {
		t.Errorf("%+v", s)
	}
}

// The bytes of every operation are pinned.
func TestGolden(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("s1", session.Exited)
	r.to("s2", session.Starting)
	if _, err := r.s.MarkFailed(ctx, "s2.failed", "s2", session.LaunchFailed); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "golden.jsonl")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

func want(t *testing.T, code session.Code, _ session.Record, err error) {
	t.Helper()
	if session.CodeOf(err) != code {
		t.Errorf("want %s, got %v", code, err)
	}
}

func TestCreateRefusals(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("s1", session.Created)
	refusing := errors.New("no")
	try := func(key, id, controller string, p []byte, v session.ValidateFunc) (session.Record, error) {
		return r.s.Create(ctx, session.CreateRequest{IdempotencyKey: key, SessionID: id, ControllerPlanDigest: controller, Plan: p}, v)
	}
	check := func(code session.Code, key, id, controller string, p []byte, v session.ValidateFunc) {
		t.Helper()
		rec, err := try(key, id, controller, p, v)
		want(t, code, rec, err)
	}
	check(session.InvalidRequest, "", "s2", ctl, plan, r.validate)
	check(session.InvalidRequest, "k", "a:b", ctl, plan, r.validate)
	check(session.InvalidRequest, "k", strings.Repeat("x", 65), ctl, plan, r.validate)
	check(session.InvalidRequest, "k", "s2", "A"+ctl[1:], plan, r.validate)
	check(session.IdempotencyConflict, "s1.create", "s2", ctl, plan, r.validate)
	check(session.IdempotencyConflict, "s1.create", "s1", prof, plan, r.validate)
	check(session.IdempotencyConflict, "s1.create", "s1", ctl, append([]byte(" "), plan...), r.validate)
	check(session.SessionConflict, "k", "s1", ctl, plan, r.validate)
	check(session.InvalidPlan, "k", "s2", ctl, plan, func(time.Time) ([]byte, session.PlanInfo, error) { return nil, session.PlanInfo{}, refusing })
	check(session.InvalidPlan, "k", "s2", ctl, plan, func(time.Time) ([]byte, session.PlanInfo, error) { return []byte(`{"b":1,"a":2}`), r.info(), nil })
	r.clock.Advance(601 * time.Second)
	check(session.InvalidPlan, "k", "s2", ctl, plan, r.validate)
	// A retry is answered though the plan has expired and would be refused now.
	if rec, err := try("s1.create", "s1", ctl, plan, func(time.Time) ([]byte, session.PlanInfo, error) { return nil, session.PlanInfo{}, refusing }); err != nil || rec.State != session.Created {
		t.Error(rec.State, err)
	}
}

func TestControllerDigestVerified(t *testing.T) {
	r := newRig(t, session.Options{})
	rec, err := r.s.Create(ctx, session.CreateRequest{IdempotencyKey: "k", SessionID: "s", ControllerPlanDigest: digest.Blake3Hex(plan), Plan: plan}, r.validate)
	if err != nil || !rec.ControllerDigestVerified {
		t.Errorf("%+v %v", rec, err)
	}
}

func TestAuthorizationRefusals(t *testing.T) {
	r := newRig(t, session.Options{})
	r.clock.Advance(time.Second)
	r.to("s1", session.Created)
	for name, row := range map[string]struct {
		code session.Code
		edit func(*session.Authorization)
	}{
		"schema":       {session.InvalidAuthorization, func(a *session.Authorization) { a.SchemaVersion = 2 }},
		"id":           {session.InvalidAuthorization, func(a *session.Authorization) { a.AuthorizationID = "" }},
		"unapproved":   {session.InvalidAuthorization, func(a *session.Authorization) { a.ApprovedAtMS = 0 }},
		"empty window": {session.InvalidAuthorization, func(a *session.Authorization) { a.ExpiresAtMS = a.ApprovedAtMS }},
		"too long":     {session.InvalidAuthorization, func(a *session.Authorization) { a.ExpiresAtMS = a.ApprovedAtMS + 120_001 }},
		"not yet":      {session.InvalidAuthorization, func(a *session.Authorization) { a.ApprovedAtMS++ }},
		"expired":      {session.InvalidAuthorization, func(a *session.Authorization) { a.ApprovedAtMS -= 10; a.ExpiresAtMS = r.ms() }},
		"unknown":      {session.NotFound, func(a *session.Authorization) { a.SessionID = "s9" }},
		"controller":   {session.InvalidAuthorization, func(a *session.Authorization) { a.ControllerPlanDigest = prof }},
		"content":      {session.InvalidAuthorization, func(a *session.Authorization) { a.PlanContentDigest = prof }},
		"before":       {session.InvalidAuthorization, func(a *session.Authorization) { a.ApprovedAtMS-- }},
	} {
		a := r.auth("s1")
		row.edit(&a)
		if _, err := r.s.ReserveStart(ctx, "k", a, resolves); session.CodeOf(err) != row.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := r.s.ReserveStart(ctx, "k", r.auth("s1"), func(time.Time, session.Record) error { return errors.New("gone") })
	want(t, session.InvalidPlan, session.Record{}, err)
	_, err = r.s.ReserveStart(ctx, "k", r.auth("s1"), func(time.Time, session.Record) error {
		return &session.Error{Code: session.InvalidAuthorization}
	})
	want(t, session.InvalidAuthorization, session.Record{}, err)
	at := r.auth("s1")
	at.ExpiresAtMS = at.ApprovedAtMS + session.MaxAuthorizationMS
	if _, err := r.s.ReserveStart(ctx, "k", at, resolves); err != nil {
		t.Errorf("at the bound: %v", err)
	}
	_, err = r.s.ReserveStart(ctx, "k2", r.auth("s1"), resolves)
	want(t, session.InvalidState, session.Record{}, err)
	_, err = r.s.ReserveStart(ctx, "k", r.auth("s1"), resolves)
	want(t, session.IdempotencyConflict, session.Record{}, err)
}

func TestStartingRefusals(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("s1", session.Preparing)
	for name, row := range map[string]struct {
		code session.Code
		edit func(*session.StartingRequest)
	}{
		"cgroup":      {session.InvalidRequest, func(q *session.StartingRequest) { q.Cgroup = &session.CgroupIdentity{Schema: 2, Ino: 1} }},
		"no scratch":  {session.InvalidRequest, func(q *session.StartingRequest) { q.Filesystem.DiskLimitBytes = 4096 }},
		"monitor":     {session.InvalidRequest, func(q *session.StartingRequest) { q.Monitor["x"] = strings.Repeat("y", session.MaxMonitor) }},
		"other auth":  {session.InvalidAuthorization, func(q *session.StartingRequest) { q.AuthorizationID = "other" }},
		"unreserved":  {session.InvalidAuthorization, func(q *session.StartingRequest) { q.Reservation = nil }},
		"other room":  {session.InvalidAuthorization, func(q *session.StartingRequest) { q.ProfileDigest = ctl }},
		"not found":   {session.NotFound, func(q *session.StartingRequest) { q.SessionID = "s9" }},
		"used key":    {session.IdempotencyConflict, func(q *session.StartingRequest) { q.IdempotencyKey = "s1.create" }},
		"bad session": {session.InvalidRequest, func(q *session.StartingRequest) { q.SessionID = "a/b" }},
	} {
		q := r.starting("k", "s1")
		row.edit(&q)
		if _, err := r.s.MarkStarting(ctx, q, resolves); session.CodeOf(err) != row.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.s.MarkStarting(ctx, r.starting("k", "s1"), resolves); err != nil {
		t.Fatal(err)
	}
	q := r.starting("k", "s1")
	q.Monitor["version"] = "2"
	_, err := r.s.MarkStarting(ctx, q, resolves)
	want(t, session.IdempotencyConflict, session.Record{}, err)
	if _, err := r.s.MarkStarting(ctx, r.starting("k", "s1"), resolves); err != nil {
		t.Errorf("replay: %v", err)
	}
	// The process is never let go after the authorization lapsed.
	r.clock.Advance(61 * time.Second)
	_, err = r.s.MarkRunning(ctx, r.request("r", "s1"))
	want(t, session.InvalidAuthorization, session.Record{}, err)
	if rec, err := r.s.MarkFailed(ctx, "f", "s1", session.AuthorizationExpired); err != nil || rec.State != session.Failed {
		t.Errorf("%v %v", rec.State, err)
	}
}

// No state is a dead end: a preparation whose authorization expired can fail,
// and only then.
func TestPreparingExpires(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("s1", session.Preparing)
	_, err := r.s.MarkFailed(ctx, "f", "s1", session.AuthorizationExpired)
	want(t, session.InvalidState, session.Record{}, err)
	r.clock.Advance(time.Minute)
	_, err = r.s.MarkFailed(ctx, "f", "s1", session.LaunchFailed)
	want(t, session.InvalidState, session.Record{}, err)
	expired, err := r.s.Expired()
	if err != nil || len(expired) != 1 {
		t.Fatal(expired, err)
	}
	rec, err := r.s.MarkFailed(ctx, session.RecoveryFailureKey(expired[0]), "s1", session.AuthorizationExpired)
	if err != nil || rec.FailureCode != session.AuthorizationExpired {
		t.Fatal(err)
	}
	r.reopen()
	if got, err := r.s.Get("s1"); err != nil || got.State != session.Failed {
		t.Error(got.State, err)
	}
	if s := r.s.Stats(); s.ReservedRecords != 0 {
		t.Errorf("%+v", s)
	}
}

func TestExitRefusals(t *testing.T) {
	r := newRig(t, session.Options{})
	rec := r.to("s1", session.Running)
	good := terminal("s1", rec.RunningAtMS, r.ms())
	for name, row := range map[string]struct {
		code session.Code
		edit func(*session.TerminalReference)
	}{
		"no exit code": {session.InvalidRequest, func(x *session.TerminalReference) { x.ExitCode = nil }},
		"signaled 3":   {session.InvalidRequest, func(x *session.TerminalReference) { x.TerminationCause = "signaled" }},
		"exit 256":     {session.InvalidRequest, func(x *session.TerminalReference) { c := int64(256); x.ExitCode = &c }},
		"profile":      {session.InvalidAuthorization, func(x *session.TerminalReference) { x.ProfileDigest = ctl }},
		"controller":   {session.InvalidAuthorization, func(x *session.TerminalReference) { x.ControllerPlanDigest = prof }},
		"refinement":   {session.InvalidAuthorization, func(x *session.TerminalReference) { x.Kind = session.KindRefinement }},
		"late start":   {session.InvalidAuthorization, func(x *session.TerminalReference) { x.StartedAtMS++; x.FinishedAtMS++ }},
		"early end":    {session.InvalidAuthorization, func(x *session.TerminalReference) { x.StartedAtMS -= 2; x.FinishedAtMS -= 1 }},
	} {
		x := good
		row.edit(&x)
		if _, err := r.s.MarkExited(ctx, "k", x, confirmed); session.CodeOf(err) != row.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := r.s.MarkExited(ctx, "k", good, func(session.TerminalReference) error { return errors.New("not there") })
	want(t, session.InvalidAuthorization, session.Record{}, err)
	_, err = r.s.MarkStopping(ctx, session.ProcessRequest{IdempotencyKey: "k", SessionID: "s1", Process: func() session.ProcessIdentity { p := process(); p.StartTicks++; return p }()})
	want(t, session.InvalidState, session.Record{}, err)
	_, err = r.s.MarkFailed(ctx, "k", "s1", session.LaunchFailed)
	want(t, session.InvalidState, session.Record{}, err)
	if _, err := r.s.MarkExited(ctx, "k", good, confirmed); err != nil {
		t.Fatal(err)
	}
	_, err = r.s.MarkFailed(ctx, "k2", "s1", session.SupervisorError)
	want(t, session.InvalidState, session.Record{}, err)
}

// A clock that is set back keeps no session from being stopped.
func TestClockBackwards(t *testing.T) {
	r := newRig(t, session.Options{})
	running := r.to("s1", session.Running)
	r.clock.Advance(-time.Hour)
	rec, err := r.s.MarkStopping(ctx, r.request("k", "s1"))
	if err != nil || rec.StoppingAtMS < running.RunningAtMS {
		t.Fatalf("%+v %v", rec, err)
	}
	if _, err := r.s.MarkFailed(ctx, "k2", "s1", session.RecoveredTerminated); err != nil {
		t.Fatal(err)
	}
	r.reopen()
}

// A full store refuses new sessions; what was started can always be ended.
func TestCapacityKeptForTheEnd(t *testing.T) {
	r := newRig(t, session.Options{MaxRecords: 8})
	r.to("s1", session.Preparing) // 2 written, 4 kept
	r.to("s2", session.Created)
	r.to("s3", session.Created)
	_, err := r.create("k", "s4")
	want(t, session.Capacity, session.Record{}, err)
	_, err = r.s.ReserveStart(ctx, "k", r.auth("s2"), resolves)
	want(t, session.Capacity, session.Record{}, err)
	r.reopen() // the reservation survives
	_, err = r.create("k", "s4")
	want(t, session.Capacity, session.Record{}, err)
	for _, step := range []func() (session.Record, error){
		func() (session.Record, error) { return r.s.MarkStarting(ctx, r.starting("k1", "s1"), resolves) },
		func() (session.Record, error) { return r.s.MarkRunning(ctx, r.request("k2", "s1")) },
		func() (session.Record, error) { return r.s.MarkStopping(ctx, r.request("k3", "s1")) },
		func() (session.Record, error) { return r.s.MarkFailed(ctx, "k4", "s1", session.SupervisorError) },
	} {
		if _, err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

// The bytes kept for a session hold its largest possible records.
func TestReservationIsLargeEnough(t *testing.T) {
	r := newRig(t, session.Options{})
	id := strings.Repeat("s", 64)
	if _, err := r.create(strings.Repeat("c", 128), id); err != nil {
		t.Fatal(err)
	}
	before := r.s.Stats()
	a := r.auth(id)
	a.AuthorizationID = strings.Repeat("a", 128)
	if _, err := r.s.ReserveStart(ctx, strings.Repeat("1", 128), a, resolves); err != nil {
		t.Fatal(err)
	}
	kept := r.s.Stats().ReservedBytes + r.s.Stats().Bytes - before.Bytes
	q := r.starting(strings.Repeat("2", 128), id)
	q.AuthorizationID = a.AuthorizationID
	q.Filesystem = &session.FilesystemIdentity{Schema: 1, DiskLimitBytes: 1<<53 - 1}
	for i := range session.MaxPartitions {
		q.Filesystem.Partitions = append(q.Filesystem.Partitions, session.Partition{
			Alias: strings.Repeat("p", 61) + string([]byte{'0' + byte(i/100), '0' + byte(i/10%10), '0' + byte(i%10)}), QuotaBytes: 1 << 45,
		})
	}
	q.Monitor = session.Monitor{"m": strings.Repeat("m", session.MaxMonitor-8)}
	q.Cgroup = &session.CgroupIdentity{Schema: 1, Dev: 1<<53 - 1, Ino: 1<<53 - 1}
	rec, err := r.s.MarkStarting(ctx, q, resolves)
	if err != nil {
		t.Fatal(err)
	}
	p := process()
	p.PID, p.StartTicks, p.CgroupDev, p.CgroupIno = 1<<32-1, 1<<53-1, 1<<53-1, 1<<53-1
	if rec, err = r.s.MarkRunning(ctx, session.ProcessRequest{IdempotencyKey: strings.Repeat("3", 128), SessionID: id, Process: p}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.s.MarkStopping(ctx, session.ProcessRequest{IdempotencyKey: strings.Repeat("4", 128), SessionID: id, Process: p}); err != nil {
		t.Fatal(err)
	}
	x := terminal(id, rec.RunningAtMS, 1<<53-1)
	x.Sequence = 1<<53 - 1
	if _, err := r.s.MarkExited(ctx, strings.Repeat("5", 128), x, confirmed); err != nil {
		t.Fatal(err)
	}
	if used := r.s.Stats().Bytes - before.Bytes; used > kept {
		t.Errorf("a session took %d bytes, and %d are kept", used, kept)
	}
}

// Whatever a store's file is changed to, it opens as it was or not at all.
func TestDamageRefused(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("s1", session.Stopping)
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(whole); i += 7 {
		bad := append([]byte{}, whole...)
		bad[i] ^= 1
		if err := os.WriteFile(r.path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := session.Open(r.path, r.o); session.CodeOf(err) != session.Storage {
			t.Fatalf("bit flipped in byte %d: %v", i, err)
		}
	}
	if err := os.WriteFile(r.path, append(whole, 'x'), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := session.Open(r.path, r.o); !errors.Is(err, journal.ErrTornTail) {
		t.Errorf("torn tail: %v", err)
	}
	if err := os.WriteFile(r.path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
}

// A chain that verifies but tells an impossible story is refused too.
func TestImpossibleStoryRefused(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("s1", session.Running)
	if err := r.s.Close(); err != nil {
		t.Fatal(err)
	}
	var bodies []map[string]any
	err := journal.Walk(r.path, func(e journal.Entry) error {
		m := map[string]any{}
		if err := unmarshal(e.Body(), &m); err != nil {
			return err
		}
		bodies = append(bodies, m)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	stories := map[string]func() []map[string]any{
		"twice":         func() []map[string]any { return append(bodies, with(bodies[3], "idempotency_key", "other")) },
		"key twice":     func() []map[string]any { return append(bodies[:1:1], with(bodies[0], "session_id", "s2")) },
		"skipped":       func() []map[string]any { return append(bodies[:1:1], bodies[2]) },
		"no create":     func() []map[string]any { return bodies[1:] },
		"wrong digest":  func() []map[string]any { return append(bodies[:1:1], with(bodies[1], "request_digest", prof)) },
		"wrong state":   func() []map[string]any { return append(bodies[:1:1], with(bodies[1], "state", "running")) },
		"time reversed": func() []map[string]any { return append(bodies[:1:1], with(bodies[1], "at_ms", 1)) },
		"alien member":  func() []map[string]any { return append(bodies[:1:1], with(bodies[1], "failure_code", "launch_failed")) },
		"unknown":       func() []map[string]any { return append(bodies[:1:1], with(bodies[1], "x", 1)) },
		"other plan":    func() []map[string]any { return []map[string]any{with(bodies[0], "plan", map[string]any{})} },
	}
	for name, story := range stories {
		path := filepath.Join(filepath.Dir(r.path), "story.jsonl")
		os.Remove(path)
		j, err := journal.Open(path, journal.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range story() {
			if _, err := j.Append(ctx, b); err != nil {
				t.Fatal(err)
			}
		}
		j.Close()
		var corrupt *journal.CorruptError
		if _, err := session.Open(path, r.o); !errors.As(err, &corrupt) || corrupt.Reason != journal.ReasonRejected {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.open()
}
