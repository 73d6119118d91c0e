package console

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestModes(t *testing.T) {
	for _, c := range []struct{ name, output, reset, reinstate string }{
		{"nothing", "plain \x1b[31mred\x1b[0m \x1b[2J", "", ""},
		{"switched off again", "\x1b[?1049h\x1b[?25l\x1b=x\x1b[?1049l\x1b[?25h\x1b>", "", ""},
		{"left on", "\x1b[?1049h\x1b[?25l\x1b[?2004h", "\x1b[?1049l\x1b[?2004l\x1b[?25h\x1b[0m", "\x1b[?1049h\x1b[?2004h\x1b[?25l"},
		{"several at once", "\x1b[?1000;1006h", "\x1b[?1000l\x1b[?1006l\x1b[0m", "\x1b[?1000h\x1b[?1006h"},
		{"keypad", "\x1b=", "\x1b>\x1b[0m", "\x1b="},
		{"full reset", "\x1b[?1000h\x1b[?25l\x1bc", "", ""},
		{"others are left alone", "\x1b[?7h\x1b[?12h\x1b[4h", "", ""},
		{"not a mode", "\x1b[?1000x\x1b[1000h\x1b[?1000$p", "", ""},
		{"too long", "\x1b[?" + strings.Repeat("1", 100) + "h", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for size := 1; size <= len(c.output); size++ { // however the output is cut
				var out bytes.Buffer
				m := Modes{Out: &out}
				for rest := c.output; rest != ""; rest = rest[min(size, len(rest)):] {
					if _, err := m.Write([]byte(rest[:min(size, len(rest))])); err != nil {
						t.Fatal(err)
					}
				}
				if out.String() != c.output {
					t.Fatalf("passed on %q, want %q", out.String(), c.output)
				}
				if got := m.Reinstate(); got != c.reinstate {
					t.Errorf("in pieces of %d: reinstate %q, want %q", size, got, c.reinstate)
				}
				if got := m.Reset(); got != c.reset {
					t.Errorf("in pieces of %d: reset %q, want %q", size, got, c.reset)
				}
				if m.Reset() != "" {
					t.Error("reset twice")
				}
			}
		})
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"text\n\ttab":                         "text\n\ttab",
		"line\r\nnext":                        "line\nnext",
		"10%\r20%\r\n":                        "10%\n20%\n",
		"\r\r\n":                              "\n",
		"\x1b[31mred\x1b[0m":                  "red",
		"\x1b]0;title\x07after":               "after",
		"\x1b]52;c;c2VjcmV0\x1b\\after":       "after",
		"\x1bP$q\"p\x1b\\after":               "after",
		"\x1b_apc\x1bx\x1b\\after":            "after",
		"\x1b(Bafter\x1b7\x1b8":               "after",
		"bell\a back\b del\x7f nul\x00":       "bell back del nul",
		"\x1b[6n\x1b[?1049h\x1b[38;2;1;2;3mx": "x",
		"Grüße ✓":                             "Grüße ✓",
	} {
		for size := 1; size <= len(in); size++ {
			var out bytes.Buffer
			p := Plain{Out: &out}
			for rest := in; rest != ""; rest = rest[min(size, len(rest)):] {
				if _, err := p.Write([]byte(rest[:min(size, len(rest))])); err != nil {
					t.Fatal(err)
				}
			}
			if out.String() != want {
				t.Errorf("%q in pieces of %d becomes %q, want %q", in, size, out.String(), want)
			}
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestPlainTellsOfFailure(t *testing.T) {
	if _, err := (&Plain{Out: broken{}}).Write([]byte("x")); err == nil {
		t.Error("a failed write was swallowed")
	}
}

func TestEncoder(t *testing.T) {
	var e encoder
	if got := string(e.encode([]byte("a\x04b\x16c\x00\n"))); got != "a\x16\x04b\x16\x16c\x16\x00\n" {
		t.Errorf("encoded %q", got)
	}
	if got := e.end(); !bytes.Equal(got, bytes.Repeat([]byte{4}, ends)) {
		t.Errorf("after a line the end is %q", got)
	}
	e.encode([]byte("x"))
	if got := len(e.end()); got != ends+1 {
		t.Errorf("after a part of a line the end is %d bytes", got)
	}
	// No line is longer than a terminal's buffer, and what was handed on does not count.
	e = encoder{}
	long := e.encode(bytes.Repeat([]byte("x"), 3*maxRun))
	if pieces := bytes.Split(long, []byte{4}); len(pieces) != 4 || len(pieces[0]) != maxRun || len(pieces[3]) != 0 {
		t.Errorf("a long line is cut into %d pieces", len(pieces))
	}
	if got := len(e.end()); got != ends {
		t.Errorf("after a line that was handed on the end is %d bytes", got)
	}
}

func TestScreen(t *testing.T) {
	s := NewScreen(5, 20)
	defer s.Close()
	// A question for the terminal is not repeated to ours.
	for _, part := range []string{"first\r\nsecond\x1b[6n\x1b[c", "\x1b[?25l\x1b[31m red\x1b[0m", "\x1b[1;1HFIRST"} {
		if _, err := s.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	paint := s.Paint()
	for _, want := range []string{"FIRST", "second", "red", "\x1b[?25l", "\x1b[1;6H"} {
		if !strings.Contains(paint, want) {
			t.Errorf("%q is not in %q", want, paint)
		}
	}
	for _, never := range []string{"\x1b[6n", "\x1b[c", "first"} {
		if strings.Contains(paint, never) {
			t.Errorf("%q is in %q", never, paint)
		}
	}
	if s.broken {
		t.Error("the emulator failed")
	}
}

// TestScreenIsBounded: a session cannot keep whoever attaches busy.
func TestScreenIsBounded(t *testing.T) {
	s := NewScreen(50, 200)
	defer s.Close()
	for _, hostile := range []string{"\x1b[999999999X", "\x9b4000000000b", strings.Repeat("x\x1b[99999999b", 50_000), strings.Repeat("\x1b[9999S\x1b[9999L", 50_000)} {
		if _, err := s.Write([]byte(hostile)); err != nil {
			t.Fatal(err)
		}
	}
	s.Paint()
}

// TestClamp: no count makes the emulator do more than a screen's worth, nothing else changes,
// and it does not matter where the output was cut in two.
func TestClamp(t *testing.T) {
	for in, want := range map[string]string{
		"plain 999999 text":              "plain 999999 text",
		"\x1b[999999999X":                "\x1b[255X",
		"\x9b4000000000b":                "\x9b255b",
		"\x1b[9999S\x1b[;9999L":          "\x1b[255S\x1b[;255L",
		"\x1b[1;9999;2H":                 "\x1b[1;255;2H",
		"\x1b[38;2;255;7;0m":             "\x1b[38;2;255;7;0m",
		"\x1b[?2004h\x1b[?1049;99999l":   "\x1b[?2004h\x1b[?1049;9999l",
		"\x1b[9999\x1b[999A":             "\x1b[255\x1b[255A",
		"é\u251b9999 \x1b(9999\x1b[m":    "é\u251b9999 \x1b(9999\x1b[m",
		"\x1b[99\n9999\x7fC":             "\x1b[\n\x7f255C",
		"\x1b[99\x189999C":               "\x1b[99\x189999C",
		"\x1b[9999$x\x1b[00007;0000099C": "\x1b[255$x\x1b[7;99C",
	} {
		for cut := range len(in) + 1 {
			c := newClamp(50, 200)
			got := string(c.filter([]byte(in[:cut])))
			got += string(c.filter([]byte(in[cut:])))
			if got != want {
				t.Errorf("%q cut at %d: %q, want %q", in, cut, got, want)
			}
		}
	}
}

func FuzzScreen(f *testing.F) {
	for _, seed := range []string{"", "text\r\n", "\x1b[?1049h\x1b[2J\x1b[99;99H\x1b[5r\x1bM", "\x1b]8;;x\x1b\\", "\x1b[999999999X\x1b[4h\xff\xc3"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := NewScreen(6, 9)
		defer s.Close()
		if n, err := s.Write(data); err != nil || n != len(data) {
			t.Fatalf("wrote %d of %d: %v", n, len(data), err)
		}
		s.Paint()
	})
}
