package transcript

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeWord makes the test binary a server that obeys its requests, so that a transcript
// can be run against every kind of wrong behaviour.
const fakeWord = "transcript-fake-server"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == fakeWord {
		os.Exit(fakeServer())
	}
	os.Exit(m.Run())
}

// fakeServer answers each line that has a "reply" with those frames, in order; "exit"
// ends it with that code, "stderr" is said on standard error.
func fakeServer() int {
	scanner := bufio.NewScanner(os.Stdin)
	for scanner.Scan() {
		var order struct {
			Reply  []json.RawMessage `json:"reply"`
			Raw    string            `json:"raw"`
			Stderr string            `json:"stderr"`
			Exit   *int              `json:"exit"`
		}
		if err := json.Unmarshal(scanner.Bytes(), &order); err != nil {
			fmt.Println(`{"id":null,"error":"parse"}`)
			continue
		}
		fmt.Fprint(os.Stderr, order.Stderr)
		fmt.Print(order.Raw)
		for _, reply := range order.Reply {
			fmt.Printf("%s\n", reply)
		}
		if order.Exit != nil {
			return *order.Exit
		}
	}
	return 0
}

func options(t *testing.T) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Launcher: Launcher{Command: []string{self, fakeWord}}, Patience: 10 * time.Second, TempDir: t.TempDir()}
}

func parse(t *testing.T, text string) *File {
	t.Helper()
	file, err := Parse(filepath.Join(t.TempDir(), "test.transcript"), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name, text string
		line       int    // of the failure; 0: it holds
		reason     string // part of its text
	}{
		{"one answer", `--> {"reply":[{"id":1,"x":2}]}
<-- {"id":1,"x":"<int>"}`, 0, ""},
		{"wrong value", `--> {"reply":[{"id":1,"x":2}]}
<-- {"id":1,"x":3}`, 3, "/x: want 3, got 2"},
		{"answers in any order", `--> {"reply":[{"id":2},{"id":1}]}
<-- {"id":1}
<-- {"id":2}`, 0, ""},
		{"same id twice", `--> {"reply":[{"id":1},{"id":1}]}
<-- {"id":1}
<-- {"id":2}`, 4, "id"},
		{"a kept value", `--> {"reply":[{"id":1,"s":"abc"}]}
<-- {"id":1,"s":"<S=string>"}
--> {"reply":[{"id":2,"s":"${S}"}]}
<-- {"id":2,"s":"abc"}`, 0, ""},
		{"one frame too many", `--> {"reply":[{"id":1},{"id":9}]}
<-- {"id":1}`, 3, "said more than was expected"},
		{"ends badly", `--> {"exit":3,"stderr":"out of luck"}
<-- <eof>`, 3, "exit status 3"},
		{"ends early", `--> {"exit":0}
<-- {"id":1}`, 3, "ended the stream"},
		{"says why on standard error", `--> {"exit":3,"stderr":"out of luck"}
<-- <eof>`, 3, "out of luck"},
		{"end expected, frame came", `--> {"reply":[{"id":1}]}
<-- <eof>`, 3, "went on"},
		{"not JSON", `--> {"raw":"hello\n"}
<-- {"id":1}`, 3, "not JSON"},
		{"a last line without end", `--> {"raw":"{}","exit":0}
<-- {}`, 3, "has no end"},
		{"malformed lines can be sent", `--> {"broken
<-- {"id":null,"error":"parse"}`, 0, ""},
		{"closing standard input", `--> <eof>
<-- <eof>`, 0, ""},
		{"a second server over the same state", `--> {"reply":[{"id":1}]}
<-- {"id":1}
$ gloved --stdio
--> {"reply":[{"id":1,"s":"${STATE}"}]}
<-- {"id":1,"s":"${STATE}"}`, 0, ""},
		{"an unknown variable", `--> {"reply":["${NOPE}"]}
<-- {}`, 2, "NOPE"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := Check(parse(t, "$ gloved --stdio\n"+test.text+"\n"), options(t))
			if test.line == 0 {
				if err != nil {
					t.Fatalf("Check: %v", err)
				}
				return
			}
			var failure *Failure
			if !errors.As(err, &failure) {
				t.Fatalf("Check = %v, want a Failure", err)
			}
			if failure.Line != test.line || !strings.Contains(failure.Error(), test.reason) {
				t.Errorf("Check failed at line %d with\n%v\nwant line %d and %q", failure.Line, failure, test.line, test.reason)
			}
		})
	}
}

func TestCheckLeavesNothingBehind(t *testing.T) {
	o := options(t)
	if err := Check(parse(t, "$ gloved --stdio\n--> {\"exit\":1}\n<-- <eof>\n"), o); err == nil {
		t.Fatal("a server that exits 1 passed")
	}
	left, err := os.ReadDir(o.TempDir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func TestSilentServerIsReported(t *testing.T) {
	o := options(t)
	o.Patience = 50 * time.Millisecond
	err := Check(parse(t, "$ gloved\n--> {}\n<-- {\"id\":1}\n"), o)
	if err == nil || !strings.Contains(err.Error(), "said nothing") {
		t.Errorf("Check = %v, want that the server said nothing", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, reason := range map[string]string{
		"":                                    "nothing would be started",
		"# only a comment\n":                  "nothing would be started",
		"--> {}\n$ gloved\n":                  "before the first",
		"$ rm -rf\n":                          "only gloved",
		"$ gloved\n--> <eof>\n--> {}\n":       "after its own <eof>",
		"$ gloved\nhello\n":                   "begins with",
		"$ gloved\n<--\n":                     "empty",
		strings.Repeat("#\n", MaxLines+1):     "lines",
		strings.Repeat("#", MaxFileBytes+1):   "larger",
		"$ gloved\n==> {\"jsonrpc\":\"2.0\"}": "begins with",
	} {
		_, err := Parse("x.transcript", []byte(text))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), reason) {
			t.Errorf("Parse(%q) = %v, want a SyntaxError with %q", clip(text, 40), err, reason)
		}
	}
}

func TestBytesAreWhatWasParsed(t *testing.T) {
	text := "# head\n\n$ gloved --stdio\n--> {\"a\":1}\n<-- {\"b\":2}\n--> <eof>\n<-- <eof>\n"
	if got := string(parse(t, text).Bytes()); got != text {
		t.Errorf("Bytes = %q, want %q", got, text)
	}
}

func TestRecordThenCheck(t *testing.T) {
	key := strings.Repeat("ab", 32)
	file := parse(t, `# keeps its comments
$ gloved --stdio
--> {"reply":[{"id":1,"created_at_ms":1700000000000,"key":"`+key+`","state":"${STATE}","until":${NOW+5}}]}
<-- {"id":1,"created_at_ms":0,"key":"<KEY=hex64>","state":"","until":0}
--> {"reply":[{"id":3,"key":"${KEY}"}]}
<-- {"id":3,"key":"<string>"}
--> {"raw":"{\"id\":2,\"digest\":\"`+strings.Repeat("cd", 32)+`\",\"expires_at_ms\":1700000000001}\n"}
<-- "<any>"
`)
	recorded, err := Record(file, options(t), false)
	if err != nil {
		t.Fatal(err)
	}
	text := string(recorded.Bytes())
	for _, part := range []string{"# keeps its comments\n", `"digest":"<hex64>"`, `"expires_at_ms":"<time>"`, `"until":${NOW+5}`,
		`"state":"${STATE}"`,
		// An expectation that holds is kept as it is written.
		`<-- {"id":3,"key":"<string>"}`,
		// What the request gave stays as it was given.
		`"created_at_ms":1700000000000`, `"key":"` + key + `"`} {
		if !strings.Contains(text, part) {
			t.Errorf("the recording lacks %q:\n%s", part, text)
		}
	}
	recorded.Path = file.Path
	if err := Check(recorded, options(t)); err != nil {
		t.Errorf("the recording does not check: %v", err)
	}
}

func TestRecordExact(t *testing.T) {
	file := parse(t, "$ gloved\n--> {\"raw\":\"{\\\"at_ms\\\":1700000000001}\\n\"}\n<-- \"<any>\"\n")
	recorded, err := Record(file, options(t), true)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(recorded.Bytes()); !strings.Contains(text, `<-- {"at_ms":1700000000001}`) {
		t.Errorf("an exact recording changed its frame:\n%s", text)
	}
}

func TestFromRequests(t *testing.T) {
	file, err := FromRequests("x.transcript", []string{"--stdio"}, []byte("# first\n{\"reply\":[{\"id\":1}]}\n\n{\"reply\":[{\"id\":2}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := Record(file, options(t), false)
	if err != nil {
		t.Fatal(err)
	}
	want := "$ gloved --stdio\n# first\n--> {\"reply\":[{\"id\":1}]}\n<-- {\"id\":1}\n\n--> {\"reply\":[{\"id\":2}]}\n<-- {\"id\":2}\n"
	if got := string(recorded.Bytes()); got != want {
		t.Errorf("recorded\n%s\nwant\n%s", got, want)
	}
	if _, err := FromRequests("x.transcript", nil, []byte("--> {}\n")); err == nil {
		t.Error("a transcript was taken for a list of requests")
	}
}

func TestReplayShowsEverything(t *testing.T) {
	var seen []string
	err := Replay(parse(t, "$ gloved\n--> {\"reply\":[{\"id\":1},{\"note\":1}]}\n<-- {\"id\":7}\n"), options(t), func(event Event) error {
		seen = append(seen, fmt.Sprintf("%d %s", event.Kind, event.Text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("[%d gloved  %d {\"reply\":[{\"id\":1},{\"note\":1}]} %d {\"id\":1} %d {\"note\":1}]", Command, Send, Expect, Expect)
	if got := fmt.Sprint(seen); got != want {
		t.Errorf("replay showed\n%s\nwant\n%s", got, want)
	}
}

func TestSandboxExpandsThePolicyBesideTheTranscript(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "default.policy.json"), []byte(`{"p":"${WORKSPACE}"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		sandbox, err := NewSandbox(&File{Path: filepath.Join(dir, name)}, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(sandbox.Vars["POLICY"])
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(data), sandbox.Dir, "DIR")
	}
	if got := read("a.transcript"); got != `{"p":"DIR/workspace"}` {
		t.Errorf("the default policy became %s", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.policy.json"), []byte(`{}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := read("a.transcript"); got != `{}` {
		t.Errorf("a transcript's own policy became %s", got)
	}
}
