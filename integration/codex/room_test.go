package codex

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// script is what a person could type, with the instance's places as $WS, $DIR, $HOME_GATE.
func (i *instance) script(text string) string {
	return "WS=" + i.ws + "; DIR=" + i.dir + "; GATE=" + i.home + "; INSTALL=" + i.install + "; POLICY=" + i.policy + "; LOG=" + i.log + "\n" + text
}

// inside runs a script in the room.
func (i *instance) inside(text string) result {
	i.t.Helper()
	return i.codex("", "start", "--timeout", "20s", "--", "sh", "-c", i.script(text))
}

// nobody is who rooms run as that root starts: the manifest's principals.codex.
const nobody = 65534

// loosen gives the whole instance to the room's user, so that no owner and no mode denies what the
// room is to deny.
func (i *instance) loosen() *instance {
	i.t.Helper()
	i.must(filepath.WalkDir(i.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && os.Geteuid() == 0 {
			err = os.Lchown(path, nobody, nobody)
		}
		if err == nil {
			mode := os.FileMode(0o666)
			if info, ierr := d.Info(); d.IsDir() || ierr == nil && info.Mode()&0o111 != 0 {
				mode = 0o777
			}
			err = os.Chmod(path, mode)
		}
		return err
	}))
	return i
}

// outside runs the same script without the room, as the user that the room has.
func (i *instance) outside(text string) result {
	i.t.Helper()
	cmd := exec.Command("sh", "-c", i.script(text))
	cmd.Dir = i.dir
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, err := cmd.CombinedOutput()
	exit := 0
	if err != nil {
		exit = 1
	}
	return result{exit: exit, out: string(out)}
}

// acts must work outside and fail inside. Each works on an instance of its own.
func acts() map[string]string {
	return map[string]string{
		// 110
		"create": "echo x > $WS/new", "append": "echo x >> $WS/docs/keep.txt", "truncate": ": > $WS/docs/keep.txt",
		"rename into": "echo x > ${TMPDIR:-/tmp}/r && mv ${TMPDIR:-/tmp}/r $WS/r", "unlink": "rm -f $WS/docs/keep.txt", "mkdir": "mkdir $WS/d",
		"chmod": "chmod 600 $WS/docs/keep.txt", "link": "ln $WS/docs/keep.txt $WS/hard", "symlink": "ln -s docs $WS/soft",
		"rename": "mv $WS/docs $WS/docs2", "touch": "touch $WS/docs/keep.txt",
		// 111
		"append log": "echo x >> $LOG", "write policy": "echo x >> $POLICY", "write vault": "echo x > $GATE/vault.enc",
		"write key": "echo x > $GATE/keys/k", "write install": "echo x > $INSTALL/bin/new", "read install": "cat $INSTALL/bin/broker",
		// 113, 115
		"read other": "cat $DIR/other/secret", "list other": "ls $DIR/other", "list parent": "ls $DIR/primary",
		"read log": "cat $LOG", "read policy": "cat $POLICY", "read vault": "cat $GATE/vault.enc",
		// 128
		"take the lock": "touch $WS/.approval-codex-lock", "make staging": "mkdir $WS/.approval-codex-txn",
	}
}

func TestReq110To115And128Denied(t *testing.T) {
	for name, act := range acts() {
		t.Run(name, func(t *testing.T) {
			if r := newInstance(t).loosen().outside(act); r.exit != 0 {
				t.Fatalf("the act does not work outside: %s", r.out)
			}
			i := newInstance(t).loosen()
			if r := i.inside("true"); r.exit != 0 {
				t.Fatalf("the room does not work: %+v", r)
			}
			if r := i.inside(act); r.exit == 0 {
				t.Fatalf("worked inside: %s", r.out)
			}
			if r := i.inside("(" + act + ")"); r.exit == 0 { // 120: a descendant
				t.Fatalf("worked in a descendant: %s", r.out)
			}
		})
	}
}

// TestReq120Descendants repeats acts from processes that got away from the first one.
func TestReq120Descendants(t *testing.T) {
	i := newInstance(t).loosen()
	for name, wrap := range map[string]string{
		"grandchild":  `sh -c 'sh -c "echo x > $WS/new"'`,
		"setsid":      `setsid -w sh -c 'echo x > $WS/new'`,
		"double fork": `(sh -c 'echo x > $WS/new; echo $? > $TMPDIR/code' &) ; until [ -s $TMPDIR/code ]; do :; done; exit $(cat $TMPDIR/code)`,
		"re-exec":     `exec sh -c 'echo x > $WS/new'`,
	} {
		if r := i.inside("export WS\n" + wrap); r.exit == 0 {
			t.Errorf("%s: %+v", name, r)
		}
		other := newInstance(t).loosen()
		if r := other.outside("export WS TMPDIR=" + other.dir + "\n" + wrap); r.exit != 0 {
			t.Errorf("%s does not work outside: %+v", name, r)
		}
	}
	if _, err := os.Stat(i.ws + "/new"); err == nil {
		t.Fatal("a descendant wrote the workspace")
	}
}

func TestReq109Description(t *testing.T) {
	i := newInstance(t)
	r := i.codex("", "start")
	var d struct {
		Egress, Canonical string
		WriteAllow        []string `json:"write_allow"`
		ReadAllow         []string `json:"read_allow"`
		DenyRead          []string `json:"deny_read"`
		Runtime, Limits   []string
	}
	if err := json.Unmarshal([]byte(r.out), &d); err != nil || r.exit != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if d.Egress != "denied" || d.Canonical != i.ws || len(d.WriteAllow) != 1 || d.WriteAllow[0] == i.ws || len(d.ReadAllow) != 2 || len(d.DenyRead) < 3 {
		t.Fatalf("%+v", d)
	}
	for _, p := range append(d.Runtime, d.ReadAllow...) { // 113: no home or gate path; 111: not the installation
		for _, bad := range []string{i.home, i.install, i.primary, "/root", "/home"} {
			if strings.HasPrefix(bad+"/", p+"/") || strings.HasPrefix(p+"/", bad+"/") {
				t.Errorf("%s is readable by way of %s", bad, p)
			}
		}
	}
	all := strings.Join(d.Limits, "\n") // 130
	for _, limit := range []string{"inbound", "secrets inside", "outside the room", "acl-unproven"} {
		if !strings.Contains(all, limit) {
			t.Errorf("the limits do not say %q", limit)
		}
	}
	if list, err := os.ReadDir(i.ws); err != nil || len(list) != 1 {
		t.Fatalf("the workspace has %v %v", list, err)
	}
}

func TestReq118NoCredentialNames(t *testing.T) {
	i := newInstance(t)
	for _, name := range []string{"SHELL", "USER", "LOGNAME", "LC_ALL", "LC_CTYPE", "COLORTERM", "TZ", "LANG", "TERM"} {
		i.env = append(i.env, name+"=x") // everything that can come from outside does
	}
	var d struct{ Environment []string }
	if err := json.Unmarshal([]byte(i.codex("", "start").out), &d); err != nil || len(d.Environment) != 13 {
		t.Fatalf("%v %v", d.Environment, err)
	}
	for _, name := range d.Environment {
		for _, bad := range []string{"TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH"} {
			if strings.Contains(name, bad) {
				t.Errorf("the environment has %s", name)
			}
		}
	}
}

func TestReq112And114And130Allowed(t *testing.T) {
	i := newInstance(t)
	i.must(os.WriteFile(i.ws+"/committed-secret", []byte("hunter2"), 0o644))
	r := i.inside(`echo mine > file && cat file && f=$(mktemp) && case $f in $TMPDIR/*) echo in-tmpdir;; esac
cat $WS/docs/keep.txt $WS/committed-secret; [ "$PWD" = "$APPROVAL_CODEX_SESSION_WORKSPACE" ] && echo here`)
	if r.exit != 0 || r.out != "mine\nin-tmpdir\nkeephunter2here\n" {
		t.Fatalf("%+v", r)
	}
}

func TestReq117Environment(t *testing.T) {
	i := newInstance(t)
	i.env = []string{"OPENAI_API_KEY=s3cret", "GITHUB_TOKEN=s3cret", "AWS_SECRET_ACCESS_KEY=s3cret", "SSH_AUTH_SOCK=/s3cret",
		"TELEGRAM_TOKEN=s3cret", "LD_PRELOAD_X=s3cret", "RANDOM_NAME=s3cret", "APPROVAL_HUMAN=human:s3cret", "LANG=C", "TERM=dumb"}
	if r := i.outsideEnv(); !strings.Contains(r, "s3cret") {
		t.Fatal("the variables are not there outside")
	}
	r := i.inside("env")
	known := map[string]bool{"PATH": true, "HOME": true, "SHELL": true, "USER": true, "LOGNAME": true, "LANG": true, "LC_ALL": true, "LC_CTYPE": true,
		"TERM": true, "COLORTERM": true, "TZ": true, "TMPDIR": true, "APPROVAL_CODEX_SESSION_WORKSPACE": true, "PWD": true, "OLDPWD": true, "SHLVL": true, "_": true}
	for line := range strings.Lines(r.out) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), "="); !known[name] {
			t.Errorf("inside: %s", line)
		}
	}
	if strings.Contains(r.out, "s3cret") || !strings.Contains(r.out, "TERM=dumb") {
		t.Fatalf("%s", r.out)
	}
}

func (i *instance) outsideEnv() string {
	cmd := exec.Command("env")
	cmd.Env = append(os.Environ(), i.env...)
	out, _ := cmd.Output()
	return string(out)
}

// TestReq119Egress tries to reach a server that anybody outside reaches.
func TestReq119Egress(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		bash = "/bin/bash"
	}
	for _, address := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			continue // a host without IPv6
		}
		reached := make(chan struct{}, 8)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
				reached <- struct{}{}
			}
		}()
		port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		connect := "exec 3<>/dev/tcp/" + address + "/" + port
		if out, err := exec.Command(bash, "-c", connect).CombinedOutput(); err != nil {
			t.Fatalf("nobody reaches the server outside: %s", out)
		}
		<-reached
		i := newInstance(t)
		for _, act := range []string{connect, strings.Replace(connect, "tcp", "udp", 1)} {
			if r := i.codex("", "start", "--", "bash", "-c", act); r.exit == 0 {
				t.Errorf("%s worked inside: %+v", act, r)
			}
			if r := i.codex("", "start", "--", "bash", "-c", "bash -c '"+act+"'"); r.exit == 0 {
				t.Errorf("%s worked in a descendant: %+v", act, r)
			}
		}
		l.Close()
		if len(reached) != 0 {
			t.Error("the server was reached from inside")
		}
	}
}

// TestReq121InheritedDescriptor leaves a writable descriptor of a canonical file open.
func TestReq121InheritedDescriptor(t *testing.T) {
	i := newInstance(t)
	line := `exec 9>>"` + i.ws + `/docs/keep.txt"; `
	if out, err := exec.Command("sh", "-c", line+`sh -c 'echo leak >&9'`).CombinedOutput(); err != nil {
		t.Fatalf("outside: %s", out)
	}
	cmd := exec.Command("sh", "-c", line+binary+" codex start --manifest "+i.manifest+` -- sh -c 'echo inside >&9'`)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Fatalf("worked: %s", out)
	}
	if got, err := os.ReadFile(i.ws + "/docs/keep.txt"); err != nil || string(got) != "keepleak\n" {
		t.Fatalf("%q %v", got, err)
	}
}

func TestReq122To125Refusals(t *testing.T) {
	i := newInstance(t)
	mark := "touch " + i.dir + "/other/ran"
	for _, flag := range []string{"--no-sandbox", "--sandbox=off", "--unconfined"} {
		if r := i.codex("", "start", flag, "--", "sh", "-c", mark); r.exit != 2 {
			t.Errorf("%s: %+v", flag, r)
		}
	}
	if help := i.ok("codex", "start", "--help"); strings.Contains(help, "no-sandbox") {
		t.Error("the help shows an opt-out")
	}
	for variable, code := range map[string]string{"APPROVAL_SANDBOX_FORCE_UNSUPPORTED": "sandbox-unsupported", "APPROVAL_SANDBOX_FORCE_UNAVAILABLE": "sandbox-unavailable"} {
		i.env = []string{variable + "=1"}
		if r := i.codex("", "start", "--json", "--", "sh", "-c", mark); r.exit != 1 || r.code(t) != code {
			t.Errorf("%s: %+v", variable, r)
		}
	}
	i.env = nil
	i.must(os.WriteFile(i.ws+"/no-x", []byte("#!/bin/sh\n"), 0o644))
	for _, name := range []string{"no-such-command", i.ws, i.ws + "/no-x", "docs/x"} {
		if r := i.codex("", "start", "--json", "--", name); r.exit != 1 || r.code(t) != "command-unresolvable" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if _, err := os.Stat(i.dir + "/other/ran"); err == nil {
		t.Fatal("a refused command ran")
	}
}

func TestReq126And127Ends(t *testing.T) {
	i := newInstance(t)
	rooms := func() int {
		list, _ := filepath.Glob(filepath.Join(os.TempDir(), "approval-room-*"))
		return len(list)
	}
	before := rooms()
	if r := i.inside("exit 7"); r.exit != 7 {
		t.Errorf("%+v", r)
	}
	if r := i.inside("kill -9 $$"); r.exit != 137 {
		t.Errorf("%+v", r)
	}
	began := time.Now()
	if r := i.codex("", "start", "--json", "--timeout", "500ms", "--", "sh", "-c", "sleep 300 & sleep 300"); r.exit != 1 || r.code(t) != "timeout" {
		t.Errorf("%+v", r)
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("the end took %v", d)
	}
	a, b := i.inside("stat -c %a $TMPDIR; pwd; touch mine; ls"), i.inside("stat -c %a $TMPDIR; pwd; ls")
	dirs := [2]string{strings.Split(a.out, "\n")[1], strings.Split(b.out, "\n")[1]}
	if !strings.HasPrefix(a.out, "700\n") || dirs[0] == dirs[1] || strings.Contains(b.out, "mine") {
		t.Errorf("%q %q", a.out, b.out)
	}
	cmd := exec.Command(binary, "codex", "start", "--manifest", i.manifest, "--", "sh", "-c", "echo up; sleep 300")
	out, err := cmd.StdoutPipe()
	i.must(err)
	i.must(cmd.Start())
	_, err = out.Read(make([]byte, 8))
	i.must(err)
	i.must(cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err == nil {
		t.Error("an interrupted room ended well")
	}
	if n := rooms(); n != before {
		t.Errorf("%d disposable workspaces stay", n-before)
	}
}

// TestReq129EndToEnd: the confined edit fails, the brokered one lands exactly, and once.
func TestReq129EndToEnd(t *testing.T) {
	i := newInstance(t)
	if r := i.inside("echo changed > $WS/docs/keep.txt"); r.exit == 0 {
		t.Fatalf("%+v", r)
	}
	i.must(os.WriteFile(i.ws+"/docs/other", []byte("other"), 0o644))
	change := proposal(t, replace("docs/keep.txt", "keep", "brokered"))
	if r := i.codex(change, "apply", "--json", "-"); r.exit != 0 {
		t.Fatalf("%+v", r)
	}
	if r := i.codex(change, "apply", "--json", "-"); r.exit != 1 {
		t.Fatalf("replayed: %+v", r)
	}
	if r := i.inside("cat $WS/docs/keep.txt $WS/docs/other"); r.out != "brokeredother" {
		t.Fatalf("%+v", r)
	}
	log, err := os.ReadFile(i.log)
	i.must(err)
	if n := strings.Count(string(log), "execution.completed"); n != 1 {
		t.Fatalf("%d completions", n)
	}
}

// TestStandardStreams: bytes go in and come out as they are.
func TestStandardStreams(t *testing.T) {
	i := newInstance(t)
	if r := i.codex("one\ntwo", "start", "--", "cat"); r.exit != 0 || r.out != "one\ntwo" {
		t.Fatalf("%+v", r)
	}
}
