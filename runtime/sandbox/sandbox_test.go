package sandbox

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestConfigRefused(t *testing.T) {
	fd := os.Stdin // never used: every row is refused before
	mount := func(target string) Mount { return Mount{Name: target, Target: target, FD: fd} }
	many := make([]string, MaxArgs+1)
	for i := range many {
		many[i] = "A=1"
	}
	good := func() Config { return Config{Argv: []string{"/bin/true"}, WorkDir: "/"} }
	if c := good(); c.validate() != nil {
		t.Fatalf("the good config is refused: %v", c.validate())
	}
	for name, change := range map[string]func(*Config){
		"no argv":            func(c *Config) { c.Argv = nil },
		"relative argv0":     func(c *Config) { c.Argv = []string{"true"} },
		"dotted argv0":       func(c *Config) { c.Argv = []string{"/bin/../bin/true"} },
		"nul in argument":    func(c *Config) { c.Argv = append(c.Argv, "a\x00b") },
		"bad utf-8":          func(c *Config) { c.Argv = append(c.Argv, "\xff") },
		"too many variables": func(c *Config) { c.Env = many },
		"variable without =": func(c *Config) { c.Env = []string{"A"} },
		"variable no name":   func(c *Config) { c.Env = []string{"=x"} },
		"too many bytes":     func(c *Config) { c.Env = []string{"A=" + strings.Repeat("x", MaxArgBytes)} },
		"relative work dir":  func(c *Config) { c.WorkDir = "x" },
		"empty work dir":     func(c *Config) { c.WorkDir = "" },
		"window":             func(c *Config) { c.Rows = MaxWindow + 1 },
		"hostname":           func(c *Config) { c.Hostname = strings.Repeat("x", 65) },
		"system path":        func(c *Config) { c.SystemPaths = []string{"usr"} },
		"mount without fd":   func(c *Config) { c.Mounts = []Mount{{Target: "/x"}} },
		"relative target":    func(c *Config) { c.Mounts = []Mount{mount("x")} },
		"root target":        func(c *Config) { c.Mounts = []Mount{mount("/")} },
		"duplicate target":   func(c *Config) { c.Mounts = []Mount{mount("/x"), mount("/x")} },
		"hides earlier":      func(c *Config) { c.Mounts = []Mount{mount("/x/y"), mount("/x")} },
		"over proc":          func(c *Config) { c.Mounts = []Mount{mount("/proc/sys")} },
		"over dev":           func(c *Config) { c.Mounts = []Mount{mount("/dev")} },
		"below dev":          func(c *Config) { c.Mounts = []Mount{mount("/dev/null")} },
		"over usr":           func(c *Config) { c.Mounts = []Mount{mount("/usr")} },
		"over etc":           func(c *Config) { c.Mounts = []Mount{mount("/etc")} },
		"below a file": func(c *Config) {
			c.Mounts = []Mount{{Name: "f", Target: "/x", FD: fd, File: true}, mount("/x/y")}
		},
	} {
		c := good()
		change(&c)
		err := c.validate()
		se, ok := errors.AsType[*StepError](err)
		if !ok || se.Step != "config" || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want a StepError at config", name, err)
		}
	}
	c := good()
	c.Mounts = []Mount{mount("/x"), mount("/x/y"), mount("/dev/shm"), mount("/etc/extra"), mount("/opt/a")}
	if err := c.validate(); err != nil {
		t.Errorf("good mounts refused: %v", err)
	}
}

func TestStepError(t *testing.T) {
	err := stepError("mounts", at("/x", os.NewSyscallError("move_mount", syscall.EPERM)))
	if err.Step != "mounts" || err.Errno != syscall.EPERM || err.Detail != "/x" {
		t.Errorf("stepError = %+v", err)
	}
	if !errors.Is(err, syscall.EPERM) || err.Code() != "sandbox_step_failed" {
		t.Errorf("unwrap or code of %v", err)
	}
	if got := stepError("other", err); got != err {
		t.Errorf("a StepError was wrapped again: %+v", got)
	}
}

func TestStepsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Steps() {
		if seen[s] || s == "" || strings.ToLower(s) != s {
			t.Errorf("step name %q is repeated or malformed", s)
		}
		seen[s] = true
	}
}
