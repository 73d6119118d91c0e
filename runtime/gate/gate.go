package gate

import (
	"context"
	"crypto/rand"
	"io"
	"path/filepath"

	"gloved.dev/internal/clock"
	alog "gloved.dev/journal/approval"
	policy "gloved.dev/policy/approval"
)

// Config says where a gate's log and policy are.
type Config struct {
	Log    string      // the event log; absolute
	Policy string      // the policy file; "": found in Dir
	Dir    string      // a folder with APPROVAL.md
	Clock  clock.Clock // nil is the system's
	Random io.Reader   // for tokens; nil is the system's
}

// A Gate acts on one log under one policy. It holds nothing between calls, so
// several may act on the same log at once, also in other processes and programs.
type Gate struct {
	c   Config
	log *alog.Log
}

// New returns a gate. Nothing is opened or created.
func New(c Config) *Gate {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	return &Gate{c: c, log: alog.Open(c.Log, alog.Options{Clock: c.Clock})}
}

// Log returns the gate's event log.
func (g *Gate) Log() *alog.Log { return g.log }

// Home is the folder of the log's neighbours: the parent of a folder named
// "log", else the log's own.
func (g *Gate) Home() string {
	dir := filepath.Dir(g.c.Log)
	if filepath.Base(dir) == "log" {
		return filepath.Dir(dir)
	}
	return dir
}

// Payloads is the store of what people are asked about.
func (g *Gate) Payloads() Payloads { return Payloads{Dir: filepath.Join(g.Home(), "payloads")} }

// Document reads the policy file once.
func (g *Gate) Document() *policy.Document {
	if g.c.Policy != "" {
		return policy.Read(g.c.Policy)
	}
	return policy.ReadDir(g.c.Dir)
}

// View reads and proves the log. Refusals: the three log codes.
func (g *Gate) View() (*View, error) {
	now := g.c.Clock.Now()
	s, err := g.log.Read()
	if err != nil {
		return nil, readError(err)
	}
	return fold(s, now), nil
}

// Details of CodePolicyNotAttested.
const (
	NotAttested         = "not-attested"
	AttestationMismatch = "hash-mismatch"
	AttestationNoFile   = "unreadable"
)

// CheckAttested refuses unless the document's bytes are those that people
// attested last.
func (v *View) CheckAttested(d *policy.Document) error {
	sha, seq := v.Attested()
	switch {
	case d.SHA256 == "":
		return &Error{Code: CodePolicyNotAttested, Detail: AttestationNoFile, Err: d.Failure}
	case sha == "":
		return &Error{Code: CodePolicyNotAttested, Detail: NotAttested,
			Message: "no person has attested the policy; read it, then: approval policy attest"}
	case sha != d.SHA256:
		return &Error{Code: CodePolicyNotAttested, Detail: AttestationMismatch, Seq: seq,
			Message: "the policy file is not the one that was attested; read what changed, then: approval policy attest"}
	}
	return nil
}

// append writes a record that follows from v and moves v's head, so that one
// operation can write two.
func (g *Gate) append(ctx context.Context, v *View, d alog.Draft) (alog.Record, error) {
	r, err := g.log.Append(ctx, &v.Head, d)
	if err != nil {
		return alog.Record{}, appendError(err)
	}
	v.Head = r.Head()
	return r, nil
}

// checkActor accepts the kinds of actors an operation is for.
func checkActor(actor string, kinds ...string) error {
	kind, _, ok := alog.ActorKind(actor)
	if ok {
		for _, k := range kinds {
			if k == kind {
				return nil
			}
		}
	}
	if len(kinds) == 1 && kinds[0] == alog.Human {
		return refuse(CodeActorNotHuman, "only a person (human:NAME) may do this")
	}
	return refuse(CodeActorInvalid, "an actor is human:NAME or agent:NAME")
}
