package control

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/require"
	"gloved.dev/internal/strictjson"
	"gloved.dev/policy"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime/host"
)

// What the session of the test prints: by itself, so that it goes on while nobody is
// connected, and then an answer to each line.
const (
	cutLines  = 1500
	cutScript = `stty -echo; i=0; while [ $i -lt 1500 ]; do echo "line $i of a session that goes on"; i=$((i+1)); sleep 0.002; done; ` +
		`while read -r l; do echo "got $l"; [ "$l" = bye ] && exit 7; done`
)

// cutPatience bounds everything in the test.
const cutPatience = 2 * time.Minute

var cutLimits = policy.Limits{CPUTimeMS: 60_000, MemoryBytes: 128 << 20, PIDs: 32, WallTimeMS: 600_000, DiskBytes: 8 << 20, TerminalOutputBytes: 16 << 20}

// A cutting is a host whose gloved is spoken to through ssh, over connections that break.
type cutting struct {
	*state
	t      *testing.T
	host   *sshHost
	serve  string // the command on the host
	launch string // the digest of what sessions run
}

func newCutting(t *testing.T) *cutting {
	t.Helper()
	if err := host.Usable(host.Checks(t.Context())); err != nil {
		require.Skip(t, "managed sessions cannot run here: "+err.Error())
	}
	c := &cutting{state: newState(t), t: t, host: startSSHD(t)}
	launch := policy.Launch{ExecutablePath: "/usr/bin/env", Arguments: []string{"sh", "-c", cutScript}, Environment: []string{"PATH=/usr/bin:/bin", "TERM=xterm"}}
	c.launch = policy.LaunchDigest(launch)
	raw, err := policy.Document{SchemaVersion: 1, Revision: 7, MaxPlanTTLMS: 3_600_000,
		RuntimeTemplates: []policy.Template{{ID: "shell", RuntimeID: "shell", AdapterDigest: c.launch, Backend: policy.BackendLinux,
			AllowedAliases: []string{"workspace"}, AllowedDestinations: []string{}, Launch: &launch}},
		PathAliases: []policy.PathAlias{{Alias: "workspace", HostPath: c.vars["WORKSPACE"], TargetPath: "/workspace", MaxTTLSecs: 3600,
			Access: []policy.AccessEntry{{Access: policy.AccessRead, Materialization: policy.MaterializeBind, Create: policy.CreateNever, Cleanup: policy.CleanupRetain}}}},
		Destinations:     []policy.Destination{},
		ResourceProfiles: []policy.Profile{policy.NewProfile("p", cutLimits)},
		EgressPolicyIDs:  []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{}}.Canonical()
	c.must(err)
	c.must(os.WriteFile(c.vars["POLICY"], raw, 0o600))
	c.serve = "exec " + strings.Join(append([]string{gloved(), "--stdio", "--materialization-root", c.vars["MATERIALIZATIONS"]}, c.full()...), " ")
	return c
}

func (c *cutting) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// connect is a controller over a new ssh connection, whom the next gloved trusts.
func (c *cutting) connect() *client.Client {
	c.t.Helper()
	ctx := within(c.t, cutPatience)
	conn, err := client.SpawnStdio(ctx, c.host.argv(c.serve), client.Options{})
	c.must(err)
	c.t.Cleanup(func() { conn.Close() })
	page, err := conn.PageReceipts(ctx, wire.Anchor{KeyID: conn.Hello().Capabilities.ReceiptAudit.KeyID, HeadHMAC: strings.Repeat("0", 64)}, 10)
	c.must(err)
	_, err = conn.AcknowledgeReceipts(ctx, "ack-"+fmt.Sprint(time.Now().UnixNano()), page.LocalAnchor)
	c.must(err)
	return conn
}

func (c *cutting) plan() string {
	c.t.Helper()
	raw, err := strictjson.Canonical(policy.PlanV1{SchemaVersion: 1, RuntimeID: "shell", RuntimeTemplateID: "shell", AdapterDigest: c.launch,
		Backend: policy.BackendLinux, EgressPolicyID: "no-network", ToolPolicyID: "none", PathGrants: []policy.AliasGrant{},
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: cutLimits, PolicyRevision: 7,
		ExpiresAtMS: uint64(time.Now().Add(30 * time.Minute).UnixMilli())})
	c.must(err)
	return string(raw)
}

// read follows a session from where out ends, until out has text in it.
func (c *cutting) read(conn *client.Client, out *strings.Builder, text string) {
	c.t.Helper()
	ctx := within(c.t, cutPatience)
	for !strings.Contains(out.String(), text) {
		r, err := conn.Attach(ctx, &wire.AttachParams{SessionID: "s-1", Cursor: int64(out.Len()), MaxBytes: 65536, WaitMS: 10_000})
		c.must(err)
		if r.Truncated {
			c.t.Fatalf("output before %d is gone", r.NextCursor)
		}
		out.Write(r.Data)
		if r.EOF && !strings.Contains(out.String(), text) {
			c.t.Fatalf("the output ended without %q: %q", text, out.String())
		}
	}
}

// cut opens an ssh connection, sends what is given, reads that many bytes of the answers,
// and kills ssh, which breaks the connection there. What is sent follows a whole request
// in one piece: with that answered, gloved has the half frame after it too.
func (c *cutting) cut(send string, read int) {
	c.t.Helper()
	argv := c.host.argv(c.serve)
	ssh := exec.Command(argv[0], argv[1:]...)
	in, err := ssh.StdinPipe()
	c.must(err)
	out, err := ssh.StdoutPipe()
	c.must(err)
	c.must(ssh.Start())
	for _, piece := range []string{hello, health + send} {
		_, err = io.WriteString(in, piece)
		c.must(err)
		for b := make([]byte, 1); b[0] != '\n'; {
			_, err := io.ReadFull(out, b)
			c.must(err)
		}
	}
	part := make([]byte, read)
	_, err = io.ReadFull(out, part)
	c.must(err)
	if strings.HasSuffix(string(part), "\n") {
		c.t.Fatalf("%d bytes end with a frame", read)
	}
	c.must(ssh.Process.Kill())
	_ = ssh.Wait() // killed
}

// gloveds are the processes that run the gloved under test.
func (c *cutting) gloveds() (pids []string) {
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	c.must(err)
	for _, exe := range exes {
		if target, err := os.Readlink(exe); err == nil && target == gloved() {
			pids = append(pids, filepath.Base(filepath.Dir(exe)))
		}
	}
	return pids
}

// request is a frame without its end.
func request(id int, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)
}

// TestSSHCutInMidFrame breaks the ssh connection in the middle of a request and in the
// middle of answers, while a session runs. Half a request has no effect; a request whose
// answer was lost has the effect once; the session goes on, and whoever comes next reads
// it on from where they were, without a gap.
func TestSSHCutInMidFrame(t *testing.T) {
	c := newCutting(t)
	plan := c.plan()
	conn := c.connect()
	ctx := within(t, cutPatience)
	create := &wire.CreateSessionParams{SessionID: "s-1", ControllerPlanDigest: strings.Repeat("a", 64), Plan: []byte(plan)}
	rec, err := conn.CreateSession(ctx, "create-1", create)
	c.must(err)
	authorization := wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "auth-1", SessionID: "s-1", ControllerPlanDigest: rec.ControllerPlanDigest,
		PlanContentDigest: rec.PlanContentDigest, ApprovedAtMS: rec.CreatedAtMS, ExpiresAtMS: rec.CreatedAtMS + 100_000}
	_, err = conn.StartSession(ctx, "start-1", authorization)
	c.must(err)
	var seen strings.Builder
	c.read(conn, &seen, "line 20 ")
	closed(t, conn)

	// Half of a request: input, and a new session.
	input := request(7, wire.MethodWriteStdin, `{"session_id":"s-1","data":"`+base64.StdEncoding.EncodeToString([]byte("half a request\n"))+`"}`)
	c.cut(input, 0)
	conn = c.connect()
	c.read(conn, &seen, "line 200 ")
	closed(t, conn)
	second := func(id, key string) string {
		return request(8, wire.MethodCreateSession, fmt.Sprintf(`{"idempotency_key":%q,"session_id":%q,"controller_plan_digest":%q,"plan":%s}`, key, id, strings.Repeat("a", 64), plan))
	}
	half := second("half", "create-half")
	c.cut(half[:len(half)/2], 0)
	conn = c.connect()
	if _, err := conn.SessionStatus(ctx, "half"); !errors.Is(err, rpc.SessionNotFound) {
		t.Errorf("half a request made a session: %v", err)
	}
	closed(t, conn)

	// Half of an answer: of one that changed something, and of so many that gloved itself
	// is held up in the middle of one.
	c.cut(second("s-2", "create-2")+"\n", 30)
	conn = c.connect()
	made, err := conn.SessionStatus(ctx, "s-2")
	c.must(err)
	again, err := conn.CreateSession(ctx, "create-2", &wire.CreateSessionParams{SessionID: "s-2", ControllerPlanDigest: strings.Repeat("a", 64), Plan: []byte(plan)})
	if err != nil || *again != *made {
		t.Errorf("asked again, the session is %+v, %v; it was %+v", again, err, made)
	}
	c.read(conn, &seen, "line 600 ")
	closed(t, conn)
	var many strings.Builder
	for id := range 200 {
		many.WriteString(request(100+id, wire.MethodAttach, `{"session_id":"s-1","cursor":0,"max_bytes":65536}`) + "\n")
	}
	c.cut(many.String(), 100_001)

	conn = c.connect()
	c.read(conn, &seen, fmt.Sprintf("line %d ", cutLines-1))
	replay, err := conn.StartSession(ctx, "start-1", authorization)
	if err != nil || replay.State != "running" {
		t.Errorf("the start asked for again = %+v, %v", replay, err)
	}
	_, err = conn.WriteStdin(ctx, "s-1", []byte("bye\n"))
	c.must(err)
	c.read(conn, &seen, "got bye\r\n")
	var want strings.Builder
	for i := range cutLines {
		fmt.Fprintf(&want, "line %d of a session that goes on\r\n", i)
	}
	if got := seen.String(); got != want.String()+"got bye\r\n" {
		t.Errorf("read %d bytes, want %d; the end is %q", len(got), want.Len(), got[max(0, len(got)-100):])
	}
	ended, err := conn.StopSession(ctx, "stop-1", "s-1")
	if err != nil || ended.State != "exited" || ended.ExitCode == nil || *ended.ExitCode != 7 || ended.Receipt == nil || ended.Receipt.Sequence != 1 {
		raw, _ := json.Marshal(ended)
		t.Errorf("the end is %s, %v", raw, err)
	}
	_, err = conn.CleanupSession(ctx, "s-1", client.WithKey("clean-1"))
	c.must(err)
	closed(t, conn)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for left := c.gloveds(); len(left) > 0; left = c.gloveds() { // one that gave up its lock may still be leaving
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("gloveds are left: %v", left)
		}
	}
}
