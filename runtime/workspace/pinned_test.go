package workspace

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// tempDir is t.TempDir with links resolved, since no link is ever followed.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pin(t testing.TB, path string) *Pinned {
	t.Helper()
	p, err := OpenPinned(path)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestOpenPinned(t *testing.T) {
	dir := tempDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.MkdirAll(at("d/e"), 0o755))
	must(t, os.WriteFile(at("d/e/f"), []byte("x"), 0o644))
	must(t, os.Symlink("d", at("dlink")))
	must(t, os.Symlink("d/e/f", at("flink")))
	must(t, os.Symlink("nowhere", at("dangling")))
	must(t, syscall.Mkfifo(at("fifo"), 0o600))
	sock, err := net.Listen("unix", at("sock"))
	must(t, err)
	defer sock.Close()
	for path, code := range map[string]string{
		at("d"):          "",
		at("d/e/f"):      "",
		at("dlink"):      CodeSymlink,
		at("dlink/e/f"):  CodeSymlink,
		at("flink"):      CodeSymlink,
		at("dangling"):   CodeSymlink,
		at("dangling/x"): CodeSymlink,
		at("d/e/f/g"):    CodeNotDirectory,
		at("fifo"):       CodeSpecial,
		at("sock"):       CodeSpecial,
		"/dev/null":      CodeSpecial,
		at("none"):       CodeNotFound,
		at("none/x"):     CodeNotFound,
		"":               CodeInvalid,
		"/":              CodeInvalid,
		"relative":       CodeInvalid,
		dir + "/":        CodeInvalid,
		dir + "/../x":    CodeInvalid,
		dir + "//d":      CodeInvalid,
		dir + "/./d":     CodeInvalid,
		dir + "/a\x00b":  CodeInvalid,
	} {
		p, err := OpenPinned(path)
		if Code(err) != code || (err == nil) != (code == "") {
			t.Errorf("%q: %v (%s), want %q", path, err, Code(err), code)
		}
		if err == nil {
			if p.IsDir() != (path == at("d")) || p.File() == nil || p.Verify() != nil {
				t.Errorf("%q: %+v, Verify %v", path, p.Identity(), p.Verify())
			}
			p.Close()
			p.Close()
			if Code(p.Verify()) != CodeClosed || p.File() != nil {
				t.Errorf("%q is not closed", path)
			}
			continue
		}
		if path != "" && path != "/" && strings.Contains(err.Error(), filepath.Base(dir)) {
			t.Errorf("%q: the error names the path: %v", path, err)
		}
	}
}

// Every way in which the path may stop leading to what was pinned.
func TestVerify(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"replaced": func(t *testing.T, dir string) {
			must(t, os.WriteFile(dir+"/new", []byte("x"), 0o644))
			must(t, os.Rename(dir+"/new", dir+"/d/f"))
		},
		"removed": func(t *testing.T, dir string) { must(t, os.Remove(dir+"/d/f")) },
		"mode":    func(t *testing.T, dir string) { must(t, os.Chmod(dir+"/d/f", 0o600)) },
		"linked": func(t *testing.T, dir string) {
			must(t, os.Rename(dir+"/d/f", dir+"/d/g"))
			must(t, os.Symlink("g", dir+"/d/f"))
		},
		"ancestor linked": func(t *testing.T, dir string) {
			must(t, os.Rename(dir+"/d", dir+"/moved"))
			must(t, os.Symlink("moved", dir+"/d"))
		},
		"ancestor moved": func(t *testing.T, dir string) { must(t, os.Rename(dir+"/d", dir+"/moved")) },
		"became a directory": func(t *testing.T, dir string) {
			must(t, os.Remove(dir+"/d/f"))
			must(t, os.Mkdir(dir+"/d/f", 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			must(t, os.Mkdir(dir+"/d", 0o755))
			must(t, os.WriteFile(dir+"/d/f", []byte("x"), 0o644))
			p := pin(t, dir+"/d/f")
			must(t, os.WriteFile(dir+"/d/f", []byte("other contents"), 0o644))
			must(t, p.Verify()) // contents are not identity
			change(t, dir)
			if err := p.Verify(); Code(err) != CodeIdentity || strings.Contains(err.Error(), dir) {
				t.Errorf("Verify: %v", err)
			}
		})
	}
}

func TestErrorQuotesNames(t *testing.T) {
	err := &Error{Code: CodeSpecial, Rel: "a/\x1b[2J\u202e"}
	if got, want := err.Error(), `workspace: not a regular file or directory: "a/\x1b[2J\u202e"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for code, text := range texts {
		if text == "" || (&Error{Code: code}).Error() != "workspace: "+text {
			t.Errorf("code %q has text %q", code, text)
		}
	}
}
