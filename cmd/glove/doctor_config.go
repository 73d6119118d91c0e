package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/policy"
	"gloved.dev/runtime/host"
)

// Codes of the checks of a configured gloved, after those of the host.
const (
	checkConfigFile = "config"
	checkRuntimeDir = "runtime_directory"
	checkAuditKey   = "audit_key"
	checkReceipts   = "receipt_journal"
	checkPolicy     = "session_policy"
	checkStore      = "session_store"
	checkRoot       = "materialization_root"
	checkUserUnits  = "linux_systemd_user"
	checkLingering  = "linux_user_lingering"
	checkService    = "control_service"
)

// maxPolicyBytes bounds what is read of a policy.
const maxPolicyBytes = policy.MaxDocument

// checkConfig looks at what a configuration names. Nothing is created or locked.
func (a *app) checkConfig(ctx context.Context, path string) []host.Check {
	options, err := daemon.LoadConfig(path)
	if err != nil {
		fix := "glove doctor --config FILE with another file, or write this one anew"
		var wrong *daemon.UsageError
		if errors.As(err, &wrong) && wrong.Next != "" {
			fix = wrong.Next
		}
		return []host.Check{{Code: checkConfigFile, Status: host.Failed, Message: err.Error(), Recovery: fix}}
	}
	journals := journalsOf(options)
	return []host.Check{
		passed(checkConfigFile, "%s is valid", path),
		checkOwnerDir(checkRuntimeDir, options.RuntimeDir, host.Warning, "gloved makes it at its first start"),
		checkKey(options.AuditKey),
		checkJournal(checkReceipts, journals[0]),
		checkSessionPolicy(options.SessionPolicy),
		checkJournal(checkStore, journals[1]),
		checkOwnerDir(checkRoot, options.MaterializationRoot, host.Failed, "mkdir -m 700 -p "+quote(options.MaterializationRoot)),
		a.checkUserManager(),
		checkLinger(),
		a.checkControl(ctx, options.RuntimeDir),
	}
}

func passed(code, format string, args ...any) host.Check {
	return host.Check{Code: code, Status: host.Passed, Message: fmt.Sprintf(format, args...)}
}

func checkOwnerDir(code, path string, missing host.Status, fix string) host.Check {
	if path == "" {
		return host.Check{Code: code, Status: host.Warning, Message: "not configured: the session lifecycle is not served", Recovery: "set " + code + " in the configuration"}
	}
	f, _, err := safefile.OpenOwnerDir(path)
	if err == nil {
		_ = f.Close() // read-only
		return passed(code, "%s is yours alone", path)
	}
	if errors.Is(err, safefile.ErrNotFound) {
		return host.Check{Code: code, Status: missing, Message: path + " does not exist", Recovery: fix}
	}
	return host.Check{Code: code, Status: host.Failed, Message: err.Error(), Recovery: "chmod 700 " + quote(path) + "; it must be a directory of yours, not a link"}
}

func checkKey(path string) host.Check {
	key, err := receipt.LoadKey(path)
	if err == nil {
		return passed(checkAuditKey, "key id %s", key.ID()[:16])
	}
	fix := "an audit key is 64 hex digits in a 0600 file of yours; a lost key cannot be replaced without a new chain"
	if _, missing := os.Lstat(path); errors.Is(missing, fs.ErrNotExist) {
		fix = "(umask 077; openssl rand -hex 32 > " + quote(path) + ")"
	}
	return host.Check{Code: checkAuditKey, Status: host.Failed, Message: err.Error(), Recovery: fix}
}

func checkJournal(code string, j journalStatus) host.Check {
	path := j.Path
	if path == "" {
		return host.Check{Code: code, Status: host.Warning, Message: "not configured: sessions are not served", Recovery: "set " + code + " in the configuration"}
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return passed(code, "%s does not exist yet; it is made when first needed", path)
	}
	// The verdict holds the error's text.
	verdict, _ := journal.VerifyFile(path, journal.VerifyOptions{})
	switch {
	case verdict.Status == journal.StatusClean:
	case verdict.Reason == journal.ReasonArchiveMissing: // its owner may keep it elsewhere
		return host.Check{Code: code, Status: host.Warning, Message: verdict.Message, Recovery: "put it back beside " + quote(path) + " to have it verified"}
	case verdict.Status == journal.StatusTorn:
		return host.Check{Code: code, Status: host.Warning, Message: verdict.Message, Recovery: "glove journal repair " + quote(path)}
	default:
		return host.Check{Code: code, Status: host.Failed, Message: verdict.Message, Recovery: "glove journal verify " + quote(path)}
	}
	if j.measure() == nil && j.Fill >= nearlyFull {
		check := host.Check{Code: code, Status: host.Warning, Message: fmt.Sprintf("%d %% full, and gloved does not rotate it by itself", j.Fill),
			Recovery: "set rotate_at in the configuration, or glove journal rotate"}
		if j.RotateAt != 0 {
			check.Message = fmt.Sprintf("%d %% full of what cannot be archived", j.Fill)
			check.Recovery = "acknowledge the receipts, and clean up what has ended: glove sessions cleanup ID"
		}
		return check
	}
	if n := len(verdict.Archives); n > 0 {
		return passed(code, "%d records prove, and %s", verdict.Records, plural(uint64(n), "archive"))
	}
	return passed(code, "%d records prove", verdict.Records)
}

func checkSessionPolicy(path string) host.Check {
	if path == "" {
		return host.Check{Code: checkPolicy, Status: host.Warning, Message: "no session policy: nothing may be run", Recovery: "glove policy generate prints a runtime template to begin one with"}
	}
	raw, _, err := safefile.ReadOwner(path, maxPolicyBytes)
	var judge *policy.Policy
	if err == nil {
		judge, err = policy.Parse(raw, policy.Env{})
	}
	if err != nil {
		return host.Check{Code: checkPolicy, Status: host.Failed, Message: err.Error(), Recovery: "glove policy explain --file " + quote(path)}
	}
	return passed(checkPolicy, "revision %d is valid", judge.Revision())
}

// checkUserManager finds out whether this user's services can be run and can limit.
func (a *app) checkUserManager() host.Check {
	if os.Geteuid() == 0 {
		return passed(checkUserUnits, "not needed: root uses system units")
	}
	run := a.getenv("XDG_RUNTIME_DIR")
	if _, err := os.Stat(filepath.Join(run, "systemd", "private")); run != "" && err == nil {
		return passed(checkUserUnits, "a systemd user manager runs")
	}
	return host.Check{Code: checkUserUnits, Status: host.Warning, Message: "no systemd user manager: gloved cannot be a user service, nor be given a control group",
		Recovery: "log in through the machine's own login, or sudo loginctl enable-linger " + userName()}
}

func checkLinger() host.Check {
	if os.Geteuid() == 0 {
		return passed(checkLingering, "not needed: root's services do not end with a login")
	}
	if _, err := os.Stat(filepath.Join("/var/lib/systemd/linger", userName())); err == nil {
		return passed(checkLingering, "services of this user outlive the login")
	}
	return host.Check{Code: checkLingering, Status: host.Warning, Message: "services of this user end with the last login",
		Recovery: "loginctl enable-linger " + userName()}
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return fmt.Sprint(os.Getuid())
}

// checkControl asks the running gloved, if there is one, how it is.
func (a *app) checkControl(ctx context.Context, dir string) host.Check {
	c, err := a.connect(ctx, connectFlags{runtimeDir: dir}, nil)
	if err != nil {
		var failure *ui.Error
		if errors.As(err, &failure) && failure.Code == "not_running" {
			return host.Check{Code: checkService, Status: host.Warning, Message: "no gloved serves " + dir, Recovery: "gloved --config FILE"}
		}
		return host.Check{Code: checkService, Status: host.Failed, Message: err.Error(), Recovery: "glove rpc --runtime-dir " + quote(dir) + " health"}
	}
	health, err := c.client.Health(ctx)
	if err = errors.Join(err, c.close()); err != nil {
		return host.Check{Code: checkService, Status: host.Failed, Message: err.Error(), Recovery: "look at gloved's log"}
	}
	var unready []string
	for _, part := range health.Components {
		if part.Code != "" {
			unready = append(unready, part.Name+": "+part.Code)
		}
	}
	if unready != nil {
		return host.Check{Code: checkService, Status: host.Warning, Message: "gloved answers; " + strings.Join(unready, ", "),
			Recovery: "a controller that pages and acknowledges the receipts makes it ready"}
	}
	return passed(checkService, "gloved answers and is ready")
}

// quote makes a path safe to paste into a shell.
func quote(path string) string {
	if path != "" && strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./+:@,") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
