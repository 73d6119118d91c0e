package broker

import (
	"encoding/base64"
	"errors"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
)

// Limits of a proposal. Each is the largest value accepted.
const (
	MaxOperations = 64
	MaxImage      = 1 << 20 // one file's content, before or after, in bytes
	MaxImages     = 8 << 20 // all contents of a proposal, before and after, in bytes
	// MaxProposal bounds the text of a proposal: every image in base64, and paths.
	MaxProposal = MaxImages/3*4 + MaxOperations*(4*MaxPathBytes+1024)
)

// Kinds of operation.
const (
	KindCreate  = "create"  // a new file; nothing of that name may exist
	KindReplace = "replace" // new content for an existing file
	KindDelete  = "delete"
	KindMove    = "move" // an existing file to a new name
)

// An Operation is one change as a caller may propose it. Which members it has follows from Kind.
type Operation struct {
	Kind     string
	Path     string // create, replace, delete
	From, To string // move
	// ExpectedBefore is the SHA-256 of the content the caller saw, in lowercase hex.
	ExpectedBefore string
	// AfterBase64 is the new content in standard, padded base64.
	AfterBase64 string
}

// A Proposal is everything a caller may say. Actor, workspace, policy, log, class and
// reversibility are not in it because they are not the caller's to choose.
type Proposal struct {
	Operations           []Operation
	ExpectedPolicySHA256 string
}

// paths are the endpoints of an operation, the source of a move first.
func (o *Operation) paths() []string {
	if o.Kind == KindMove {
		return []string{o.From, o.To}
	}
	return []string{o.Path}
}

type wireOperation struct {
	Kind     string  `json:"kind"`
	Path     *string `json:"path,omitzero"`
	From     *string `json:"from,omitzero"`
	To       *string `json:"to,omitzero"`
	Expected *string `json:"expected_before_sha256,omitzero"`
	After    *string `json:"after_base64,omitzero"`
}

type wireProposal struct {
	Operations []wireOperation `json:"operations"`
	Expected   string          `json:"expected_policy_sha256"`
}

// members says for each kind which members an operation has, in wireOperation's order.
var members = map[string][5]bool{
	KindCreate:  {true, false, false, false, true},
	KindReplace: {true, false, false, true, true},
	KindDelete:  {true, false, false, true, false},
	KindMove:    {false, true, true, true, false},
}

// ParseProposal reads a caller's arguments. It judges their form only; every error is a Refusal of
// CodeInputInvalid, whose message names the member at fault.
func ParseProposal(data []byte) (*Proposal, error) {
	var w wireProposal
	if err := strictjson.Decode(data, &w, strictjson.Limits{MaxBytes: MaxProposal, MaxDepth: 8}); err != nil {
		return nil, inputError(err)
	}
	switch {
	case !ident.Hex64(w.Expected):
		return nil, refuse(CodeInputInvalid, "", "expected_policy_sha256 must be 64 lowercase hexadecimal digits")
	case len(w.Operations) == 0 || len(w.Operations) > MaxOperations:
		return nil, refuse(CodeInputInvalid, "", "operations must have 1 to %d entries", MaxOperations)
	}
	p := &Proposal{ExpectedPolicySHA256: w.Expected, Operations: make([]Operation, len(w.Operations))}
	for i := range w.Operations {
		op, err := w.Operations[i].operation(i)
		if err != nil {
			return nil, err
		}
		p.Operations[i] = op
	}
	return p, nil
}

func (w *wireOperation) operation(i int) (Operation, error) {
	want, ok := members[w.Kind]
	if !ok {
		return Operation{}, refuse(CodeInputInvalid, "", "operations[%d].kind must be create, replace, delete or move", i)
	}
	have := [5]bool{w.Path != nil, w.From != nil, w.To != nil, w.Expected != nil, w.After != nil}
	names := [5]string{"path", "from", "to", "expected_before_sha256", "after_base64"}
	for m := range have {
		switch {
		case want[m] && !have[m]:
			return Operation{}, refuse(CodeInputInvalid, "", "operations[%d] (%s) lacks %s", i, w.Kind, names[m])
		case !want[m] && have[m]:
			return Operation{}, refuse(CodeInputInvalid, "", "operations[%d] (%s) must not have %s", i, w.Kind, names[m])
		}
	}
	op := Operation{Kind: w.Kind, Path: value(w.Path), From: value(w.From), To: value(w.To),
		ExpectedBefore: value(w.Expected), AfterBase64: value(w.After)}
	if w.Expected != nil && !ident.Hex64(op.ExpectedBefore) {
		return Operation{}, refuse(CodeInputInvalid, "",
			"operations[%d].expected_before_sha256 must be 64 lowercase hexadecimal digits", i)
	}
	return op, nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func inputError(err error) *Refusal {
	where := "the proposal"
	if e, ok := errors.AsType[*strictjson.Error](err); ok {
		if e.Pointer != "" {
			where = printable(e.Pointer)
		}
		why := e.Detail
		if why == "" {
			why = strings.ReplaceAll(e.Code, "_", " ")
		}
		return refuse(CodeInputInvalid, e.Code, "%s is not as the schema says: %s", where, printable(why)).because(err)
	}
	return refuse(CodeInputInvalid, "", "%s cannot be read", where).because(err)
}

// after decodes an operation's new content. Only the one canonical text of a byte string counts:
// padded, of the standard alphabet, without line ends and with zero trailing bits.
func (o *Operation) after() ([]byte, *Refusal) {
	if len(o.AfterBase64) > base64.StdEncoding.EncodedLen(MaxImage) {
		return nil, planRefusal("image-too-large", o.Path, "the new content has more than %d bytes", MaxImage)
	}
	data, err := base64.StdEncoding.Strict().DecodeString(o.AfterBase64)
	if err != nil || base64.StdEncoding.EncodeToString(data) != o.AfterBase64 {
		return nil, planRefusal("base64-invalid", o.Path, "after_base64 is not canonical base64")
	}
	if len(data) > MaxImage {
		return nil, planRefusal("image-too-large", o.Path, "the new content has more than %d bytes", MaxImage)
	}
	return data, nil
}
