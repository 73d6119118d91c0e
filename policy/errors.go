package policy

import (
	"errors"
	"fmt"
	"strings"

	"gloved.dev/internal/strictjson"
)

// Codes of Error, in the order in which loading can meet them.
const (
	CodeFile           = "policy_file"           // the file is not a protected owner file; see Err
	CodeJSON           = "policy_json"           // not the strict JSON of the schema
	CodeSchemaVersion  = "policy_schema_version" // schema_version is not 1
	CodeCollection     = "policy_collection"     // a list is empty that must not be, or too long
	CodeBackend        = "policy_backend"        // unknown sandbox_backend
	CodeAccessKind     = "policy_access_kind"    // unknown access, materialization, create or cleanup value
	CodeIdentifier     = "policy_identifier"     // a name or digest breaks its grammar
	CodeDuplicate      = "policy_duplicate"      // a name, entry or profile occurs twice
	CodePath           = "policy_path"           // a path is relative, "/", not normal or too long
	CodeRestrictedPath = "policy_restricted_path"
	CodeReservedTarget = "policy_reserved_target"
	CodeAccessRule     = "policy_access_rule" // a combination of access, materialization, create, cleanup and quota that does not exist
	CodeOverlap        = "policy_overlap"     // two paths, or two objects, overlap
	CodeHostObject     = "policy_host_object" // a host path cannot be opened without following links; see Err
	CodeNumber         = "policy_number"      // a number is zero or out of range
	CodeUnlisted       = "policy_unlisted"    // a reference to something the policy does not define
	CodeEgressHost     = "policy_egress_host"
	CodeLaunch         = "policy_launch" // a launch breaks its rules
	CodeDigest         = "policy_digest" // adapter_command_digest is not the digest of the launch
	CodeHeadroom       = "policy_headroom"
)

// Error says why a policy is refused. It is for the owner: Detail may hold host paths, and no part
// of it goes to a controller.
type Error struct {
	Code    string // one of the Code constants
	Pointer string // RFC 6901 pointer of the fault; "" for the whole document
	Detail  string // what is wrong
	Fix     string // what would mend it
	Err     error  // cause: *safefile.Error, *strictjson.Error, *pathwalk.Error or nil
}

// Error gives pointer, fault and fix.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("policy: ")
	if e.Pointer != "" {
		b.WriteString(e.Pointer + ": ")
	}
	b.WriteString(e.Detail)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Fix != "" {
		b.WriteString("; " + e.Fix)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Reason is why a plan is refused: a closed set, safe for the controller.
type Reason string

// The reasons.
const (
	ReasonSchema       Reason = "schema"
	ReasonExpired      Reason = "expired"
	ReasonTTL          Reason = "ttl_too_long"
	ReasonRevision     Reason = "revision_mismatch"
	ReasonRuntime      Reason = "runtime_not_authorized"
	ReasonBackend      Reason = "backend_mismatch"
	ReasonLimits       Reason = "limits_not_authorized"
	ReasonPolicyID     Reason = "policy_id_not_authorized"
	ReasonGrant        Reason = "grant_not_authorized"
	ReasonProjection   Reason = "projection_not_authorized"
	ReasonSecret       Reason = "secret_not_authorized"
	ReasonNotCanonical Reason = "not_canonical"
	ReasonRefinement   Reason = "refinement_binding"
	ReasonTooMany      Reason = "too_many"
)

// Reasons returns every reason, sorted.
func Reasons() []Reason {
	return []Reason{
		ReasonBackend, ReasonExpired, ReasonGrant, ReasonLimits, ReasonNotCanonical, ReasonPolicyID,
		ReasonProjection, ReasonRefinement, ReasonRevision, ReasonRuntime, ReasonSchema, ReasonSecret,
		ReasonTooMany, ReasonTTL,
	}
}

// PlanError says why a plan is refused. Reason, Pointer and Message are safe for the controller: they
// hold nothing of the host and nothing that the plan did not say. PolicyPointer, Detail and Err stay
// local.
type PlanError struct {
	Reason  Reason
	Pointer string // RFC 6901 pointer into the plan
	Message string // a short sentence

	PolicyPointer string // the policy line that stands against the plan; "" if none does
	Detail        string // the same for the owner, with local names
	Err           error  // local cause, or nil
}

// Error returns the public text.
func (e *PlanError) Error() string {
	if e.Pointer == "" {
		return "plan refused: " + string(e.Reason) + ": " + e.Message
	}
	return "plan refused: " + string(e.Reason) + ": " + e.Message + " (" + e.Pointer + ")"
}

// Local returns the text for the owner's log: the public one and what stays local.
func (e *PlanError) Local() string {
	var b strings.Builder
	b.WriteString(e.Error())
	if e.PolicyPointer != "" {
		b.WriteString("; policy " + e.PolicyPointer)
	}
	if e.Detail != "" {
		b.WriteString("; " + e.Detail)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, "; %v", e.Err)
	}
	return b.String()
}

// Is reports whether target is a *PlanError with the same Reason and nothing else set, so that
// errors.Is(err, &PlanError{Reason: ReasonExpired}) works.
func (e *PlanError) Is(target error) bool {
	t, ok := target.(*PlanError)
	return ok && *t == PlanError{Reason: e.Reason}
}

// LaunchCode says why an accepted plan cannot be launched.
type LaunchCode string

// The launch codes.
const (
	LaunchTemplateUnavailable LaunchCode = "template_unavailable"   // the template has no launch
	LaunchExecutable          LaunchCode = "executable_unavailable" // discovery found none that is trusted
	LaunchArguments           LaunchCode = "managed_argument"       // the template repeats an adapter's argument, or there are too many
	LaunchEnvironment         LaunchCode = "reserved_environment"   // the template sets a variable that Glove sets
	LaunchEgress              LaunchCode = "egress_unavailable"     // the egress id has no targets behind it
	LaunchSecret              LaunchCode = "secret_unavailable"     // a handle has no mount for this runtime
	LaunchGrant               LaunchCode = "grant_unavailable"      // a granted object cannot be opened or changed
	LaunchTarget              LaunchCode = "target_conflict"        // two things want the same place in the sandbox
	LaunchQuota               LaunchCode = "quota_alignment"        // a write quota is no multiple of the page size
	LaunchUnsupported         LaunchCode = "unsupported"            // the runtime cannot do this; see ResolvedLaunch.Unsupported
)

// LaunchError says why an accepted plan cannot be launched. Its text is for the owner's log: it may
// hold host paths, and nothing of it goes to a controller but the fact that the start failed.
type LaunchError struct {
	Code          LaunchCode
	PolicyPointer string // the policy line concerned; "" if none
	Detail        string
	Err           error
}

// Error gives code, policy line and detail.
func (e *LaunchError) Error() string {
	s := "launch: " + string(e.Code) + ": " + e.Detail
	if e.PolicyPointer != "" {
		s += " (policy " + e.PolicyPointer + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *LaunchError) Unwrap() error { return e.Err }

// fault builds an Error.
func fault(code, pointer, fix, format string, args ...any) *Error {
	return &Error{Code: code, Pointer: pointer, Fix: fix, Detail: fmt.Sprintf(format, args...)}
}

// jsonFault turns a strict decoding error into an Error.
func jsonFault(err error) *Error {
	e := &Error{Code: CodeJSON, Detail: "the document is not valid", Err: err,
		Fix: "write every required member once, exactly as the schema spells it, and no other"}
	if s, ok := errors.AsType[*strictjson.Error](err); ok {
		e.Pointer = s.Pointer
		if fix := jsonFixes[s.Code]; fix != "" {
			e.Fix = fix
		}
	}
	return e
}

// jsonFixes says what mends a document that is no strict JSON of the schema.
var jsonFixes = map[string]string{
	strictjson.CodeUnknownMember: "correct the name's spelling (case counts), or remove the member",
	strictjson.CodeDuplicateName: "keep one of the two",
	strictjson.CodeMissing:       "add the member: every one that the schema does not call optional is needed",
	strictjson.CodeNumberRange:   "write a whole number of at most 9007199254740991",
	strictjson.CodeType:          "write a value of the type the schema has there",
	strictjson.CodeSyntax:        "write JSON (RFC 8259): no comments, no trailing commas",
	strictjson.CodeTrailing:      "end the document after its closing brace",
	strictjson.CodeTooDeep:       "nest less",
}

// refuse builds a PlanError with its public part.
func refuse(reason Reason, pointer, format string, args ...any) *PlanError {
	return &PlanError{Reason: reason, Pointer: pointer, Message: fmt.Sprintf(format, args...)}
}

// against adds the local part.
func (e *PlanError) against(policyPointer, format string, args ...any) *PlanError {
	e.PolicyPointer, e.Detail = policyPointer, fmt.Sprintf(format, args...)
	return e
}

// schemaError turns a strict decoding error into a PlanError. The pointer may hold a member name that
// the plan chose, so its length is bounded.
func schemaError(err error) *PlanError {
	e := refuse(ReasonSchema, "", "the plan does not fit its schema")
	e.Err = err
	if s, ok := errors.AsType[*strictjson.Error](err); ok {
		e.Message += ": " + s.Code
		if len(s.Pointer) <= 256 {
			e.Pointer = s.Pointer
		}
	}
	return e
}
