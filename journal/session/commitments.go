package session

import (
	"strconv"

	"gloved.dev/internal/digest"
)

// The layouts below are those of the existing system, so that a commitment made
// there and one made here of the same facts are the same.

const layoutVersion = 1

// CreateDigest is the request digest of create: SHA-256 of the submitted bytes.
func CreateDigest(plan []byte) string { return digest.SHA256Hex(plan) }

// AuthorizationDigest commits to a start authorization.
func AuthorizationDigest(a Authorization) string {
	return digest.New("glove.session-start-authorization").U8(layoutVersion).
		S(a.AuthorizationID).S(a.SessionID).S(a.ControllerPlanDigest).S(a.PlanContentDigest).
		U64(a.ApprovedAtMS).U64(a.ExpiresAtMS).Sum()
}

// A Binding is the five strings every later commitment begins with.
type Binding struct {
	SessionID, ControllerPlanDigest, PlanContentDigest, AuthorizationID, ProfileDigest string
}

func (b Binding) begin(domain string) *digest.Encoder {
	return digest.New(domain).U8(layoutVersion).
		S(b.SessionID).S(b.ControllerPlanDigest).S(b.PlanContentDigest).S(b.AuthorizationID).S(b.ProfileDigest)
}

func filesystem(e *digest.Encoder, f *FilesystemIdentity) *digest.Encoder {
	if e.Opt(f != nil); f == nil {
		return e
	}
	e.U8(f.Schema).U64(f.DiskLimitBytes).U32(uint32(len(f.Partitions)))
	for _, p := range f.Partitions {
		e.S(p.Alias).U64(p.QuotaBytes)
	}
	return e
}

// BindingDigest commits to what a session is about to run in.
func BindingDigest(b Binding, c *CgroupIdentity, f *FilesystemIdentity) string {
	e := b.begin("glove.session-execution-binding")
	if e.Opt(c != nil); c != nil {
		e.U8(c.Schema).U64(c.Dev).U64(c.Ino)
	}
	return filesystem(e, f).Sum()
}

// RunningDigest commits to the process a session runs as.
func RunningDigest(b Binding, p ProcessIdentity, f *FilesystemIdentity) string {
	return process(b.begin("glove.session-running-commitment"), p, f)
}

// StoppingDigest commits to the process that is being stopped.
func StoppingDigest(b Binding, p ProcessIdentity, f *FilesystemIdentity) string {
	return process(b.begin("glove.session-stopping-commitment"), p, f)
}

func process(e *digest.Encoder, p ProcessIdentity, f *FilesystemIdentity) string {
	e.U8(p.Schema).U32(p.PID).S(p.BootID).U64(p.StartTicks).U64(p.CgroupDev).U64(p.CgroupIno).S(p.CgroupPathDigest)
	return filesystem(e, f).Sum()
}

// FailureDigest commits to a failure. For a session that failed before it was
// bound the profile digest is empty.
func FailureDigest(b Binding, code string) string {
	return b.begin("glove.session-failure-commitment").S(code).Sum()
}

// TerminalDigest commits to the receipt that ended a session.
func TerminalDigest(t TerminalReference) string {
	e := digest.New("glove.session-terminal-envelope").U8(layoutVersion).
		U64(t.Sequence).S(t.KeyID).S(t.SessionID).S(t.ControllerPlanDigest).S(t.ProfileDigest).
		S(t.ReceiptDigest).S(t.PreviousHMAC).S(t.HMAC).S(t.TerminationCause).
		U64(t.StartedAtMS).U64(t.FinishedAtMS)
	if e.Opt(t.ExitCode != nil); t.ExitCode != nil {
		e.U32(uint32(*t.ExitCode)) //nolint:gosec // 0..255
	}
	return e.Sum()
}

// RecoveryFailureKey is the idempotency key under which reconciliation fails a
// session, the same however often it is interrupted.
func RecoveryFailureKey(r Record) string {
	auth := ""
	if r.Authorization != nil {
		auth = r.Authorization.AuthorizationID
	}
	return "recovery-fail-" + digest.SHA256Hex([]byte(r.SessionID+":"+auth+":"+r.ProfileDigest+":"+
		strconv.FormatUint(r.StartingAtMS, 10)))
}

// RecoveryExitKey is the idempotency key under which reconciliation ends a
// session from the receipt with that sequence number.
func RecoveryExitKey(sequence uint64) string {
	return "recovery-exit-" + strconv.FormatUint(sequence, 10)
}
