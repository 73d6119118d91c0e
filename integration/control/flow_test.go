package control

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/strictjson"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/transport"
	"gloved.dev/rpc/wire"
)

// controlFlow is what a controller does up to a start.
func controlFlow(t *testing.T, c *client.Client) {
	t.Helper()
	ctx := within(t, time.Minute)
	raw := []byte(plan())
	canonical, err := strictjson.CanonicalBytes(raw)
	if err != nil {
		t.Fatal(err)
	}
	valid, err := c.ValidatePlan(ctx, raw)
	if err != nil {
		t.Fatalf("validate_plan: %v", err)
	}
	if want := digest.SHA256Hex(canonical); valid.PlanContentDigest != want || valid.PolicyRevision != 7 {
		t.Errorf("validate_plan = %+v, want digest %s and revision 7", valid, want)
	}
	request := &wire.CreateSessionParams{SessionID: "flow", ControllerPlanDigest: digest.Blake3Hex(canonical), Plan: raw}
	created, err := c.CreateSession(ctx, "flow-key", request)
	if err != nil {
		t.Fatalf("create_session: %v", err)
	}
	if created.State != "created" || !created.ControllerDigestVerified || created.PlanContentDigest != valid.PlanContentDigest {
		t.Errorf("create_session = %+v, want state created, a verified controller digest and the validated content digest", created)
	}
	again, err := c.CreateSession(ctx, "flow-key", request)
	if err != nil || *again != *created {
		t.Errorf("the retry = %+v, %v; want %+v", again, err, created)
	}
	status, err := c.SessionStatus(ctx, "flow")
	if err != nil || *status != *created {
		t.Errorf("session_status = %+v, %v; want %+v", status, err, created)
	}
	if _, err := c.SessionStatus(ctx, "nobody"); !errors.Is(err, rpc.SessionNotFound) {
		t.Errorf("session_status of nobody = %v, want session_not_found", err)
	}
	pageAndAcknowledge(t, c)
}

func pageAndAcknowledge(t *testing.T, c *client.Client) {
	t.Helper()
	ctx := within(t, time.Minute)
	anchor := wire.Anchor{KeyID: c.Hello().Capabilities.ReceiptAudit.KeyID, HeadHMAC: strings.Repeat("0", 64)}
	page, err := c.PageReceipts(ctx, anchor, 10)
	if err != nil {
		t.Fatalf("page_receipts: %v", err)
	}
	if len(page.Envelopes) != 0 || page.HasMore || page.LocalAnchor != anchor {
		t.Errorf("page_receipts = %+v, want nothing after the start of the chain", page)
	}
	if _, err := c.AcknowledgeReceipts(ctx, "ack-key", page.LocalAnchor); err != nil {
		t.Errorf("acknowledge_receipts: %v", err)
	}
	wrong := page.LocalAnchor
	wrong.Sequence = 1
	if _, err := c.AcknowledgeReceipts(ctx, "ack-wrong", wrong); !errors.Is(err, rpc.AuditReconciliationFailed) {
		t.Errorf("acknowledging what is not there = %v, want audit_reconciliation_failed", err)
	}
}

func closed(t *testing.T, c *client.Client) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestFlowOverStdio(t *testing.T) {
	s := newState(t)
	c, err := client.SpawnStdio(within(t, time.Minute), append([]string{gloved(), "--stdio"}, s.full()...), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	controlFlow(t, c)
	closed(t, c)
}

func TestFlowOverSocket(t *testing.T) {
	s := newState(t)
	dir := s.resident(t)
	c, err := client.DialRuntimeDir(within(t, time.Minute), dir, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	controlFlow(t, c)
	closed(t, c)
}

func TestWrongSecretIsRefusedAndNobodyElseIsHurt(t *testing.T) {
	s := newState(t)
	dir := s.resident(t)
	ctx := within(t, time.Minute)
	good, err := client.DialRuntimeDir(ctx, dir, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"", strings.Repeat("0", 64), "short"} {
		_, err := client.DialSocket(ctx, filepath.Join(dir, transport.SocketName), client.Options{Secret: secret})
		if !errors.Is(err, rpc.Unauthorized) {
			t.Errorf("opening with the secret %q = %v, want unauthorized", secret, err)
		}
	}
	if _, err := good.Health(ctx); err != nil {
		t.Errorf("the connection beside them: %v", err)
	}
	closed(t, good)
}

func TestSecondStdioRelaysAndStaysAController(t *testing.T) {
	s := newState(t)
	dir := s.resident(t)
	ctx := within(t, time.Minute)
	// The relaying process is given the same configuration and serves none of it itself.
	relayed, err := client.SpawnStdio(ctx, append([]string{gloved(), "--stdio", "--runtime-dir", dir}, s.full()...), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	controlFlow(t, relayed)
	owner, err := client.DialRuntimeDir(ctx, dir, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := owner.SessionStatus(ctx, "flow"); err != nil || status.State != "created" {
		t.Errorf("the resident gloved knows of the relayed session: %+v, %v", status, err)
	}
	closed(t, owner)
	closed(t, relayed)

	// A controller that guesses the owner's part is still a controller.
	secret, err := transport.ReadSecret(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.SpawnStdio(ctx, append([]string{gloved(), "--stdio", "--runtime-dir", dir}, s.full()...), client.Options{Secret: secret})
	if !errors.Is(err, rpc.InvalidParams) {
		t.Errorf("a relayed controller that gives the bootstrap secret = %v, want invalid_params", err)
	}
}

func TestEveryMethodIsInATranscript(t *testing.T) {
	s := newState(t)
	c, err := client.SpawnStdio(within(t, time.Minute), append([]string{gloved(), "--stdio"}, s.full()...), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, c)
	document, err := c.Discover(within(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, path := range transcripts(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	var names []string
	for _, method := range document.Methods {
		names = append(names, method.Name)
		if !strings.Contains(all.String(), `"method":"`+method.Name+`"`) {
			t.Errorf("no golden transcript calls %s", method.Name)
		}
	}
	if slices.Sort(names); !slices.Equal(names, c.Hello().Capabilities.Methods) {
		t.Errorf("rpc.discover has %v, capabilities %v", names, c.Hello().Capabilities.Methods)
	}
}
