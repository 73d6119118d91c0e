package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/strictjson"
	"gloved.dev/policy"
	"gloved.dev/rpc/wire"
)

// startFlags are those of glove sessions start.
type startFlags struct {
	connectFlags
	sessionPolicy, template, profile, id string
	asJSON                               bool
}

func (a *app) sessionsStart() *cobra.Command {
	var f startFlags
	command := &cobra.Command{
		Use:   "start",
		Short: "Start a session of a program that the policy permits, as the controller",
		Long: `Start a session as a controller would: a plan is written that names a template and a profile
of the session policy, and every path that the template may use, as a copy where the policy
permits copies, else for reading. The receipts so far are paged and acknowledged, the plan is
created, authorized and started. The policy is read only to write the plan; gloved decides by
its own.

Where a controller such as Sage is in use it starts sessions itself; glove run starts one
of any command without a policy of yours.`,
		Example: `  glove sessions start
  glove sessions start --template codex-safe --profile small --session-id s-42
  glove sessions attach s-42`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return a.startSession(command.Context(), f) },
	}
	f.addTo(command.Flags())
	flags := command.Flags()
	flags.StringVar(&f.sessionPolicy, "session-policy", "", "the session policy `file` to write the plan by (default: that of the configuration)")
	flags.StringVar(&f.template, "template", "", "the `ID` of the runtime template (default: the only one)")
	flags.StringVar(&f.profile, "profile", "", "the `ID` of the resource profile (default: the only one)")
	flags.StringVar(&f.id, "session-id", "", "the session's `ID` (default: a new one)")
	flags.BoolVar(&f.asJSON, "json", false, "print the session's record as one JSON document")
	return command
}

func (a *app) startSession(ctx context.Context, f startFlags) error {
	path, err := a.policyPath(f)
	if err != nil {
		return err
	}
	judge, err := policy.Load(path)
	if err != nil {
		return ui.Fail("session_policy_invalid", err.Error(), "glove policy explain --file "+path+" shows the fault and its place")
	}
	now := time.Now()
	plan, err := planBy(judge.Document(), f.template, f.profile, now)
	if err != nil {
		return err
	}
	raw, err := strictjson.Canonical(plan)
	if err != nil {
		return ui.Failf("plan_invalid", "%w", err)
	}
	if f.id == "" {
		f.id = "s-" + randomHex(4)
	}
	c, err := a.sessionDial(ctx, f.connectFlags, nil)
	if err != nil {
		return err
	}
	rec, err := createAndStart(ctx, c, f.id, raw, now)
	if err = errors.Join(err, c.close()); err != nil {
		return err
	}
	if f.asJSON {
		return a.JSON(rec)
	}
	a.Outf("%s is %s\n", rec.SessionID, rec.State)
	a.Errf("%s glove sessions attach %s\n", ui.Paint(a.ErrColor, ui.Cyan, "next:"), rec.SessionID)
	return nil
}

// policyPath is the policy that the plan is written by.
func (a *app) policyPath(f startFlags) (string, error) {
	if f.sessionPolicy != "" {
		return absolute(f.sessionPolicy)
	}
	config := f.config
	if config == "" {
		config = a.ownConfig()
	}
	if config != "" {
		options, err := daemon.LoadConfig(config)
		if err != nil {
			return "", ui.Failf("config_unreadable", "%w", err)
		}
		if options.SessionPolicy != "" {
			return options.SessionPolicy, nil
		}
	}
	return "", usageNextError("--session-policy FILE, the one that gloved was given", "which policy is the plan to be written by?")
}

// maxPlanLife bounds how long a plan of ours is good for.
const maxPlanLife = 12 * time.Hour

// planBy writes the plan that a policy permits for a template and a profile.
func planBy(doc policy.Document, template, profile string, now time.Time) (*policy.PlanV1, error) {
	t, err := one("template", template, doc.RuntimeTemplates, func(t policy.Template) string { return t.ID })
	if err != nil {
		return nil, err
	}
	p, err := one("profile", profile, doc.ResourceProfiles, func(p policy.Profile) string { return p.ID })
	if err != nil {
		return nil, err
	}
	if len(doc.EgressPolicyIDs) == 0 || len(doc.ToolPolicyIDs) == 0 {
		return nil, ui.Fail("session_policy_invalid", "the policy names no egress or tool policy, and a plan must", "add \"no-network\" and \"none\"")
	}
	life := min(time.Duration(doc.MaxPlanTTLMS)*time.Millisecond, maxPlanLife) //nolint:gosec // bounded by the policy's own rules
	plan := &policy.PlanV1{SchemaVersion: 1, RuntimeID: t.RuntimeID, RuntimeTemplateID: t.ID, AdapterDigest: t.AdapterDigest, Backend: t.Backend,
		EgressPolicyID: doc.EgressPolicyIDs[0], ToolPolicyID: doc.ToolPolicyIDs[0], PathGrants: []policy.AliasGrant{},
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, PolicyRevision: doc.Revision,
		Limits: policy.Limits{CPUTimeMS: p.CPUTimeMS, MemoryBytes: p.MemoryBytes, PIDs: p.PIDs, WallTimeMS: p.WallTimeMS,
			DiskBytes: p.DiskBytes, TerminalOutputBytes: p.TerminalOutputBytes},
		ExpiresAtMS: uint64(now.Add(life).Add(-time.Second).UnixMilli())} //nolint:gosec // after 1970
	// No grant may outlive the plan, of which the start uses up a little.
	ttl := uint64(max(1, (life - 2*startLife).Seconds()))
	for _, alias := range doc.PathAliases {
		if !slices.Contains(t.AllowedAliases, alias.Alias) {
			continue
		}
		for _, access := range []policy.Access{policy.AccessEphemeralWrite, policy.AccessRead} {
			at := slices.IndexFunc(alias.Access, func(e policy.AccessEntry) bool { return e.Access == access })
			if at < 0 {
				continue
			}
			e := alias.Access[at]
			plan.PathGrants = append(plan.PathGrants, policy.AliasGrant{Alias: alias.Alias, Access: e.Access, Materialization: e.Materialization,
				MaxBytes: e.MaxBytes, TTLSecs: min(alias.MaxTTLSecs, ttl), Cleanup: e.Cleanup})
			break
		}
	}
	slices.SortFunc(plan.PathGrants, func(a, b policy.AliasGrant) int { return strings.Compare(a.Alias, b.Alias) }) // as a plan demands
	return plan, nil
}

// one finds the entry of that id, or, without an id, the only one.
func one[T any](kind, id string, all []T, idOf func(T) string) (entry T, err error) {
	var ids []string
	for _, e := range all {
		if idOf(e) == id {
			return e, nil
		}
		ids = append(ids, idOf(e))
	}
	switch {
	case id != "":
		return entry, usageNextError("one of "+strings.Join(ids, ", "), "the policy has no %s %q", kind, id)
	case len(all) != 1:
		return entry, usageNextError("--"+kind+" with one of "+strings.Join(ids, ", "), "the policy has %d %ss", len(all), kind)
	}
	return all[0], nil
}

// startLife is how long the authorization of a start is good for: copying may take long.
const startLife = time.Minute

func createAndStart(ctx context.Context, c *connection, id string, plan []byte, now time.Time) (*wire.Session, error) {
	key := randomHex(16)
	if _, err := acknowledge(ctx, c); err != nil {
		return nil, err
	}
	rec, err := c.client.CreateSession(ctx, "glove-create-"+key, &wire.CreateSessionParams{SessionID: id, ControllerPlanDigest: policy.ControllerDigest(plan), Plan: plan})
	if err != nil {
		return nil, protocolFailure(err)
	}
	approved := max(now.UnixMilli(), rec.CreatedAtMS)
	rec, err = c.client.StartSession(ctx, "glove-start-"+key, wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "glove-" + key, SessionID: id,
		ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest,
		ApprovedAtMS: approved, ExpiresAtMS: approved + startLife.Milliseconds()})
	if err != nil {
		return nil, protocolFailure(err)
	}
	return rec, nil
}
