package transcript

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// quietFor is how long a server must be silent before a recording takes it to have said
// all it has to say to a line that asks for no answer.
const quietFor = 300 * time.Millisecond

// Record plays the sending side of file against a fresh server and returns the same
// transcript with the frames that came in place of the expected ones. Comments stay.
// Values that change from run to run are written as matchers or variables: those of the
// sandbox, times (members ending in _ms or named ts that the request did not give) and
// digests that nothing sent. With exact set, frames are kept as they came.
//
// What is recorded is what the server did, right or wrong: read it before keeping it.
func Record(file *File, options Options, exact bool) (*File, error) {
	recorded := &File{Path: file.Path}
	recording := &recorder{vars: Vars{}, sent: map[string]bool{}, exact: exact}
	err := play(file, options, func(event Event) error {
		recorded.Entries = append(recorded.Entries, recording.entry(event))
		return nil
	}, recording.begin)
	return recorded, err
}

// Event is one thing that happened while a transcript was played: a line of the file
// that is not an expectation, or a frame that came (Kind Expect, or ExpectEOF when the
// server ended the stream). Text of a Send is as it was sent, Source as it was written.
type Event struct {
	Kind   Kind
	Text   string
	Source string
}

// Replay plays the sending side of file and hands over everything that happens, as it
// happens, without comparing anything.
func Replay(file *File, options Options, see func(Event) error) error {
	return play(file, options, see, func(Vars) {})
}

func play(file *File, options Options, see func(Event) error, begin func(Vars)) (err error) {
	sandbox, err := NewSandbox(file, options.TempDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sandbox.Close()) }()
	begin(sandbox.Vars)
	p := &player{options: options, vars: sandbox.Vars, see: see}
	defer p.abort()
	for i, entry := range file.Entries {
		if err := p.step(entry, file.Entries[i+1:]); err != nil {
			return fmt.Errorf("%s:%d: %w", file.Path, entry.Line, err)
		}
	}
	return p.end()
}

type player struct {
	options Options
	vars    Vars
	see     func(Event) error
	server  *server
	owed    int // answers to come for what was sent since the last time they were taken
	over    bool
}

func (p *player) step(entry Entry, rest []Entry) error {
	switch entry.Kind {
	case Expect, ExpectEOF:
		// What comes is taken once everything of a group was sent; here only the names
		// that later lines use are learned.
		return p.takeFor(entry)
	case Send:
		text, err := p.vars.Expand(entry.Text, true)
		if err != nil {
			return err
		}
		if err := p.see(Event{Kind: Send, Text: text, Source: entry.Text}); err != nil {
			return err
		}
		if err := p.server.send(text); err != nil {
			return err
		}
		p.owed += answers(text)
		if len(rest) == 0 || rest[0].Kind == Comment || rest[0].Kind == Command {
			return p.takeOwed()
		}
		return nil
	case SendEOF:
		if err := p.see(Event{Kind: SendEOF}); err != nil {
			return err
		}
		return p.server.input.Close()
	case Command:
		return p.command(entry)
	default:
		return p.see(Event{Kind: entry.Kind, Text: entry.Text, Source: entry.Text})
	}
}

// answers is how many frames a line asks for. A line that is not a request in any
// readable form is refused with one.
func answers(text string) int {
	var head struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
	}
	if strings.TrimSpace(text) == "" {
		return 0
	}
	if err := json.Unmarshal([]byte(text), &head); err == nil && head.Method != nil && head.ID == nil {
		return 0
	}
	return 1
}

func (p *player) command(entry Entry) error {
	if err := p.end(); err != nil {
		return err
	}
	args, err := expandArgs(entry, p.vars)
	if err != nil {
		return err
	}
	if err := p.see(Event{Kind: Command, Text: "gloved " + strings.Join(args, " "), Source: entry.Text}); err != nil {
		return err
	}
	p.over = false
	p.server, err = p.options.Launcher.start(args)
	return err
}

// takeFor takes the owed answers; the values an old expectation names are kept from
// the frame with the same id, so that a recording of it can be played on.
func (p *player) takeFor(old Entry) error {
	if p.owed == 0 && old.Kind == Expect {
		return nil
	}
	for p.owed > 0 && !p.over {
		got, err := p.take()
		if err != nil {
			return err
		}
		if want, err := p.vars.Expand(old.Text, true); err == nil && got != nil {
			keepNamed([]byte(want), got, p.vars)
		}
	}
	return nil
}

func (p *player) takeOwed() error {
	for p.owed > 0 && !p.over {
		if _, err := p.take(); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) take() ([]byte, error) {
	got, err := p.server.next(p.options.patience())
	if errors.Is(err, io.EOF) {
		p.over, p.owed = true, 0
		return nil, p.see(Event{Kind: ExpectEOF})
	}
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, p.server.stderr)
	}
	p.owed--
	return got, p.see(Event{Kind: Expect, Text: string(got)})
}

// keepNamed learns the values of named matchers from a frame, where it has them.
func keepNamed(want, got []byte, vars Vars) {
	wantValue, wantErr := decode(want)
	gotValue, gotErr := decode(got)
	if wantErr != nil || gotErr != nil {
		return
	}
	m := matcher{kept: Vars{}}
	m.compare("", wantValue, gotValue)
	maps.Copy(vars, m.kept)
}

// end takes what the running server still says and ends it.
func (p *player) end() error {
	if p.server == nil {
		return nil
	}
	if err := p.takeOwed(); err != nil {
		return err
	}
	for !p.over {
		got, err := p.server.next(quietFor)
		if err != nil {
			break
		}
		if err := p.see(Event{Kind: Expect, Text: string(got)}); err != nil {
			return err
		}
	}
	ending := p.server
	p.server = nil
	extra, err := ending.finish()
	for _, text := range extra {
		if err := p.see(Event{Kind: Expect, Text: string(text)}); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, ending.stderr)
	}
	return nil
}

func (p *player) abort() {
	if p.server != nil {
		p.server.abort()
	}
}

// recorder turns events into entries.
type recorder struct {
	vars  Vars            // the sandbox's
	sent  map[string]bool // every string and number that was sent
	exact bool
}

func (r *recorder) begin(vars Vars) { r.vars = maps.Clone(vars) }

func (r *recorder) entry(event Event) Entry {
	switch event.Kind {
	case Send:
		if value, err := decode([]byte(event.Text)); err == nil {
			r.remember(value)
		}
		return Entry{Kind: Send, Text: event.Source}
	case Expect:
		return Entry{Kind: Expect, Text: r.generalize(event.Text)}
	default:
		return Entry{Kind: event.Kind, Text: event.Source}
	}
}

func (r *recorder) remember(value any) {
	switch value := value.(type) {
	case string:
		r.sent[value] = true
	case number:
		r.sent[string(value)] = true
	case []any:
		for _, element := range value {
			r.remember(element)
		}
	case map[string]any:
		for _, member := range value {
			r.remember(member)
		}
	}
}

func (r *recorder) generalize(text string) string {
	if r.exact {
		return text
	}
	value, err := decode([]byte(text))
	if err != nil {
		return text
	}
	return render(r.general("", value))
}

func (r *recorder) general(name string, value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(value))
		for _, member := range slices.Sorted(maps.Keys(value)) {
			out[member] = r.general(member, value[member])
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i := range value {
			out[i] = r.general(name, value[i])
		}
		return out
	case number:
		if isTimeMember(name) && !r.sent[string(value)] && plausibleMillis(value) {
			return "<time>"
		}
		return value
	case string:
		return r.generalString(name, value)
	}
	return value
}

func (r *recorder) generalString(name, value string) any {
	if r.sent[value] {
		return value
	}
	for _, variable := range slices.Sorted(maps.Keys(r.vars)) {
		if r.vars[variable] == value {
			return "${" + variable + "}"
		}
	}
	switch {
	case isHex64(value) && strings.Trim(value, "0") != "":
		return "<hex64>"
	case isTimeMember(name) && kindHolds("time", value):
		return "<time>"
	case name == "version" && strings.Count(value, ".") > 0:
		return "<string>"
	}
	return value
}

func isTimeMember(name string) bool {
	return strings.HasSuffix(name, "_ms") || name == "ts"
}

// FromRequests makes a transcript that sends each line of requests to a gloved started
// with args, ready for Record. Blank lines and lines beginning with "#" are comments.
func FromRequests(path string, args []string, requests []byte) (*File, error) {
	var text strings.Builder
	text.WriteString("$ gloved " + strings.Join(args, " ") + "\n")
	for line := range strings.Lines(string(requests)) {
		line = strings.TrimRight(line, "\r\n")
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "#") {
			text.WriteString(line + "\n")
			continue
		}
		if strings.HasPrefix(line, "-->") || strings.HasPrefix(line, "<--") || strings.HasPrefix(line, "$ ") {
			return nil, errors.New("that is already a transcript: record it with its own name")
		}
		text.WriteString("--> " + line + "\n")
		text.WriteString("<-- " + strconv.Quote("<any>") + "\n")
	}
	return Parse(path, []byte(text.String()))
}
