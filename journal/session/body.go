package session

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
)

// Operations.
const (
	opCreate   = "create"
	opReserve  = "reserve_start"
	opStarting = "mark_starting"
	opRunning  = "mark_running"
	opStopping = "mark_stopping"
	opExited   = "mark_exited"
	opRefined  = "mark_refinement_exited"
	opFailed   = "mark_failed"
)

// A body is one operation as the journal stores it. Members that do not belong
// to the operation are absent. The canonical plan is stored once, by create.
type body struct {
	SchemaVersion        uint8  `json:"schema_version"`
	Operation            string `json:"operation"`
	IdempotencyKey       string `json:"idempotency_key"`
	SessionID            string `json:"session_id"`
	ControllerPlanDigest string `json:"controller_plan_digest"`
	PlanContentDigest    string `json:"plan_content_digest"`
	RequestDigest        string `json:"request_digest"`
	State                State  `json:"state"`
	AtMS                 uint64 `json:"at_ms"`

	// create
	PolicyRevision uint64         `json:"policy_revision,omitzero"`
	ExpiresAtMS    uint64         `json:"expires_at_ms,omitzero"`
	Refinement     bool           `json:"refinement,omitzero"`
	Verified       bool           `json:"controller_digest_verified,omitzero"`
	Plan           jsontext.Value `json:"plan,omitzero"`

	Authorization *Authorization      `json:"authorization,omitzero"`         // reserve_start
	ProfileDigest string              `json:"launch_profile_digest,omitzero"` // mark_starting
	Cgroup        *CgroupIdentity     `json:"cgroup,omitzero"`
	Filesystem    *FilesystemIdentity `json:"filesystem,omitzero"`
	Monitor       Monitor             `json:"monitor,omitzero"`
	Process       *ProcessIdentity    `json:"process,omitzero"`      // mark_running, mark_stopping
	Terminal      *TerminalReference  `json:"terminal,omitzero"`     // mark_exited
	FailureCode   string              `json:"failure_code,omitzero"` // mark_failed
}

// only reports whether b has no member that belongs to another operation.
func (b body) only() bool {
	own := b
	switch b.Operation {
	case opCreate:
		own.PolicyRevision, own.ExpiresAtMS, own.Refinement, own.Verified, own.Plan = 0, 0, false, false, nil
	case opReserve:
		own.Authorization = nil
	case opStarting:
		own.ProfileDigest, own.Cgroup, own.Filesystem, own.Monitor = "", nil, nil, nil
	case opRunning, opStopping:
		own.Process = nil
	case opExited, opRefined:
		own.Terminal = nil
	case opFailed:
		own.FailureCode = ""
	}
	return own.PolicyRevision == 0 && own.ExpiresAtMS == 0 && !own.Refinement && !own.Verified && own.Plan == nil &&
		own.Authorization == nil && own.ProfileDigest == "" && own.Cgroup == nil && own.Filesystem == nil &&
		own.Monitor == nil && own.Process == nil && own.Terminal == nil && own.FailureCode == ""
}

// next computes the record that b makes of r (nil: no such session) and proves
// every rule that does not depend on the outside: it is the whole of recovery's
// judgement, and the last check before a new record is written.
func (b body) next(r *Record) (*Record, error) {
	switch {
	case b.SchemaVersion != 1:
		return nil, errors.New("unknown schema_version")
	case !ident.ID(b.IdempotencyKey) || !ident.MatID(b.SessionID) || !ident.Hex64(b.ControllerPlanDigest) ||
		!ident.Hex64(b.PlanContentDigest) || !ident.Hex64(b.RequestDigest) || b.AtMS == 0:
		return nil, errors.New("an identifier, digest or time is ill-formed")
	case !b.only():
		return nil, fmt.Errorf("a member does not belong to %s", b.Operation)
	case b.Operation == opCreate:
		return b.created(r)
	case r == nil:
		return nil, errors.New("the session was never created")
	case b.ControllerPlanDigest != r.ControllerPlanDigest || b.PlanContentDigest != r.PlanContentDigest:
		return nil, errors.New("the plan digests are not the session's")
	case b.AtMS < r.lastMS():
		return nil, errors.New("the time is before the session's last")
	}
	to := *r
	want, err := b.apply(&to)
	if err != nil {
		return nil, err
	}
	if want != b.RequestDigest {
		return nil, errors.New("the request digest does not recompute")
	}
	if b.State != to.State {
		return nil, errors.New("the state is not what the operation leads to")
	}
	return &to, nil
}

func (b body) created(r *Record) (*Record, error) {
	switch {
	case r != nil:
		return nil, errors.New("the session was created before")
	case b.State != Created || b.PolicyRevision == 0 || b.ExpiresAtMS <= b.AtMS || len(b.Plan) == 0 || b.Plan[0] != '{':
		return nil, errors.New("an incomplete create")
	case digest.SHA256Hex(b.Plan) != b.PlanContentDigest:
		return nil, errors.New("the plan is not the one its digest names")
	case b.Verified != (digest.Blake3Hex(b.Plan) == b.ControllerPlanDigest):
		return nil, errors.New("controller_digest_verified is not what the plan proves")
	}
	return &Record{
		SessionID: b.SessionID, State: Created, ControllerPlanDigest: b.ControllerPlanDigest,
		ControllerDigestVerified: b.Verified, PlanContentDigest: b.PlanContentDigest, Plan: b.Plan,
		PolicyRevision: b.PolicyRevision, ExpiresAtMS: b.ExpiresAtMS, Refinement: b.Refinement, CreatedAtMS: b.AtMS,
	}, nil
}

// apply moves r and returns the commitment the operation must carry.
func (b body) apply(r *Record) (string, error) {
	illegal := fmt.Errorf("%s from %s", b.Operation, r.State)
	switch b.Operation {
	case opReserve:
		a := b.Authorization
		if r.State != Created {
			return "", illegal
		}
		if a == nil || !a.wellFormed() || b.AtMS < a.ApprovedAtMS || b.AtMS >= a.ExpiresAtMS || !r.authorizes(*a) {
			return "", errors.New("the authorization is not for this session and time")
		}
		r.State, r.Authorization, r.AuthorizedAtMS = Preparing, a, b.AtMS
		return AuthorizationDigest(*a), nil
	case opStarting:
		if r.State != Preparing {
			return "", illegal
		}
		if r.AuthorizationExpired(b.AtMS) || !ident.Hex64(b.ProfileDigest) || !b.Cgroup.wellFormed() ||
			!b.Filesystem.wellFormed() || !b.Monitor.wellFormed() {
			return "", errors.New("an ill-formed or late execution binding")
		}
		r.State, r.StartingAtMS = Starting, b.AtMS
		r.ProfileDigest, r.Cgroup, r.Filesystem, r.Monitor = b.ProfileDigest, b.Cgroup, b.Filesystem, b.Monitor
		return BindingDigest(r.binding(), r.Cgroup, r.Filesystem), nil
	case opRunning:
		if r.State != Starting {
			return "", illegal
		}
		if b.Process == nil || !b.Process.wellFormed() || !r.inCgroup(*b.Process) ||
			b.AtMS >= r.Authorization.ExpiresAtMS || b.AtMS >= r.ExpiresAtMS {
			return "", errors.New("an ill-formed or late process")
		}
		r.State, r.Process, r.RunningAtMS = Running, b.Process, b.AtMS
		return RunningDigest(r.binding(), *b.Process, r.Filesystem), nil
	case opStopping:
		if r.State != Running {
			return "", illegal
		}
		if b.Process == nil || *b.Process != *r.Process {
			return "", errors.New("another process")
		}
		r.State, r.StoppingAtMS = Stopping, b.AtMS
		return StoppingDigest(r.binding(), *b.Process, r.Filesystem), nil
	case opExited, opRefined:
		if r.State != Running && r.State != Stopping {
			return "", illegal
		}
		if b.Terminal == nil || r.ends(*b.Terminal) != "" || (b.Operation == opRefined) != r.Refinement {
			return "", errors.New("the terminal receipt is not this session's")
		}
		r.State, r.Terminal, r.FinishedAtMS = Exited, b.Terminal, b.Terminal.FinishedAtMS
		return TerminalDigest(*b.Terminal), nil
	case opFailed:
		if !mayFail(r.State, b.FailureCode) || r.State == Preparing && !r.AuthorizationExpired(b.AtMS) {
			return "", illegal
		}
		r.State, r.FailureCode, r.FinishedAtMS = Failed, b.FailureCode, b.AtMS
		return FailureDigest(r.binding(), b.FailureCode), nil
	}
	return "", fmt.Errorf("unknown operation %q", b.Operation)
}

func (r *Record) binding() Binding {
	return Binding{r.SessionID, r.ControllerPlanDigest, r.PlanContentDigest, r.Authorization.AuthorizationID, r.ProfileDigest}
}

// authorizes reports whether a is for this very session and stays within its
// plan's life.
func (r *Record) authorizes(a Authorization) bool {
	return a.SessionID == r.SessionID && a.ControllerPlanDigest == r.ControllerPlanDigest &&
		a.PlanContentDigest == r.PlanContentDigest && a.ApprovedAtMS >= r.CreatedAtMS && a.ExpiresAtMS <= r.ExpiresAtMS
}

func (r *Record) inCgroup(p ProcessIdentity) bool {
	return r.Cgroup == nil || p.CgroupDev == r.Cgroup.Dev && p.CgroupIno == r.Cgroup.Ino
}

// ends says why t cannot be the end of r, or "".
func (r *Record) ends(t TerminalReference) string {
	kind := KindResource
	if r.Refinement {
		kind = KindRefinement
	}
	switch {
	case !t.wellFormed():
		return "it is ill-formed"
	case t.Kind != kind:
		return "its kind is not the one the plan asks for"
	case t.SessionID != r.SessionID || t.ControllerPlanDigest != r.ControllerPlanDigest || t.ProfileDigest != r.ProfileDigest:
		return "it is for another session, plan or profile"
	case t.StartedAtMS > r.RunningAtMS:
		return "it starts after the session ran"
	case t.FinishedAtMS < max(r.RunningAtMS, r.StoppingAtMS):
		return "it ends before the session's last transition"
	}
	return ""
}

// mayFail says which failures a state permits. A preparation that fails may be
// tried again until its authorization expires, so preparing knows that one end
// only; a session that ran ends with what its supervisor or recovery found.
func mayFail(s State, code string) bool {
	switch code {
	case AuthorizationExpired:
		return s == Preparing || s == Starting
	case LaunchFailed:
		return s == Starting
	case SupervisorError, RecoveredWithoutProcess, RecoveredTerminated:
		return s == Starting || s == Running || s == Stopping
	}
	return false
}
