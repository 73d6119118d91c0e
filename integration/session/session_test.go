package session

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/require"
	"gloved.dev/internal/strictjson"
	"gloved.dev/policy"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/transcript"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime/host"
)

// program is the gloved under test.
var program string

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "glove-session-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "gloved")
	if out, err := exec.Command("go", "build", "-o", program, "gloved.dev/cmd/gloved").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// needRuntime skips where no session can run.
func needRuntime(t testing.TB) {
	t.Helper()
	if err := host.Usable(host.Checks(t.Context())); err != nil {
		require.Skip(t, "managed sessions cannot run here: "+err.Error())
	}
}

const goldens = "../../testdata/transcripts/sessions/"

func TestGoldenTranscripts(t *testing.T) {
	needRuntime(t)
	paths, err := filepath.Glob(goldens + "*.transcript")
	if err != nil || len(paths) < 5 {
		t.Fatalf("%d transcripts found: %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".transcript"), func(t *testing.T) {
			file, err := transcript.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			options := transcript.Options{Launcher: transcript.Launcher{Command: []string{program}}, Patience: time.Minute, TempDir: t.TempDir()}
			if err := transcript.Check(file, options); err != nil {
				t.Error(err)
			}
		})
	}
}

// A site is the state of one gloved, whose sessions run script.
type site struct {
	t    testing.TB
	dir  string
	vars transcript.Vars
	head wire.Anchor
	n    int

	launch string // the digest of what sessions run
}

func newSite(t testing.TB, script string) *site {
	t.Helper()
	needRuntime(t)
	sandbox, err := transcript.NewSandbox(&transcript.File{Path: goldens + "x.transcript"}, t.TempDir())
	must(t, err)
	s := &site{t: t, dir: sandbox.Dir, vars: sandbox.Vars}
	s.policy(script)
	return s
}

func (s *site) args(more ...string) []string {
	v := s.vars
	return append([]string{program, "--audit-key", v["AUDIT_KEY"], "--journal", v["JOURNAL"], "--session-policy", v["POLICY"],
		"--session-store", v["STORE"], "--materialization-root", v["MATERIALIZATIONS"]}, more...)
}

// stdio is a controller over a gloved of its own.
func (s *site) stdio(o client.Options) *client.Client {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.SpawnStdio(ctx, s.args("--stdio"), o)
	must(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// trust pages and acknowledges until the head stands still.
func (s *site) trust(c *client.Client) {
	s.t.Helper()
	ctx := s.ctx(30 * time.Second)
	if s.head.KeyID == "" {
		caps, err := c.Capabilities(ctx)
		must(s.t, err)
		s.head = wire.Anchor{KeyID: caps.ReceiptAudit.KeyID, HeadHMAC: strings.Repeat("0", 64)}
	}
	for {
		page, err := c.PageReceipts(ctx, s.head, 1000)
		must(s.t, err)
		if !page.HasMore {
			s.head = page.LocalAnchor
			s.n++
			_, err := c.AcknowledgeReceipts(ctx, s.key("ack"), s.head)
			must(s.t, err)
			return
		}
		var last struct {
			Sequence int64  `json:"sequence"`
			HMAC     string `json:"this_hmac"`
		}
		must(s.t, json.Unmarshal(page.Envelopes[len(page.Envelopes)-1], &last))
		s.head.Sequence, s.head.HeadHMAC = last.Sequence, last.HMAC
	}
}

func (s *site) key(name string) string {
	s.n++
	return name + "-" + strconv.Itoa(s.n) + "-" + strconv.Itoa(os.Getpid())
}

func (s *site) ctx(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	s.t.Cleanup(cancel)
	return ctx
}

// start creates and starts a session.
func (s *site) start(c *client.Client, id string) {
	s.t.Helper()
	ctx := s.ctx(30 * time.Second)
	rec, err := c.CreateSession(ctx, "create-"+id, &wire.CreateSessionParams{SessionID: id,
		ControllerPlanDigest: strings.Repeat("a", 64), Plan: []byte(s.plan())})
	must(s.t, err)
	_, err = c.StartSession(ctx, "start-"+id, wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "auth-" + id, SessionID: id,
		ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest,
		ApprovedAtMS: rec.CreatedAtMS, ExpiresAtMS: rec.CreatedAtMS + 100_000})
	must(s.t, err)
}

// until reads from cursor on until the output ends with want, or the stream ends.
func (s *site) until(c *client.Client, id string, cursor int64, want string) (string, int64) {
	s.t.Helper()
	ctx := s.ctx(30 * time.Second)
	var out strings.Builder
	for {
		r, err := c.Attach(ctx, &wire.AttachParams{SessionID: id, Cursor: cursor, MaxBytes: 65536, WaitMS: 10_000})
		must(s.t, err)
		out.Write(r.Data)
		if cursor = r.NextCursor; r.EOF || strings.HasSuffix(out.String(), want) {
			return out.String(), cursor
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const terminal = `TERM=xterm-256color`

// policy writes a policy whose sessions run script.
func (s *site) policy(script string) {
	s.t.Helper()
	launch := policy.Launch{ExecutablePath: "/usr/bin/env", Arguments: []string{"sh", "-c", script}, Environment: []string{"PATH=/usr/bin:/bin", terminal}}
	s.launch = policy.LaunchDigest(launch)
	doc := policy.Document{SchemaVersion: 1, Revision: 7, MaxPlanTTLMS: 3_600_000,
		RuntimeTemplates: []policy.Template{{ID: "shell", RuntimeID: "shell", AdapterDigest: s.launch, Backend: policy.BackendLinux,
			AllowedAliases: []string{"workspace"}, AllowedDestinations: []string{}, Launch: &launch}},
		PathAliases: []policy.PathAlias{{Alias: "workspace", HostPath: s.vars["WORKSPACE"], TargetPath: "/workspace", MaxTTLSecs: 3600,
			Access: []policy.AccessEntry{{Access: policy.AccessRead, Materialization: policy.MaterializeBind, Create: policy.CreateNever, Cleanup: policy.CleanupRetain}}}},
		Destinations:     []policy.Destination{},
		ResourceProfiles: []policy.Profile{policy.NewProfile("p", limits)},
		EgressPolicyIDs:  []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{}}
	raw, err := doc.Canonical()
	must(s.t, err)
	must(s.t, os.WriteFile(s.vars["POLICY"], raw, 0o600))
}

var limits = policy.Limits{CPUTimeMS: 60_000, MemoryBytes: 256 << 20, PIDs: 64, WallTimeMS: 300_000, DiskBytes: 16 << 20, TerminalOutputBytes: 1 << 30}

func (s *site) plan() string {
	raw, err := strictjson.Canonical(policy.PlanV1{SchemaVersion: 1, RuntimeID: "shell", RuntimeTemplateID: "shell", AdapterDigest: s.launch,
		Backend: policy.BackendLinux, EgressPolicyID: "no-network", ToolPolicyID: "none", PathGrants: []policy.AliasGrant{},
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: limits, PolicyRevision: 7,
		ExpiresAtMS: uint64(time.Now().Add(30 * time.Minute).UnixMilli())})
	must(s.t, err)
	return string(raw)
}
