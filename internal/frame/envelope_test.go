package frame

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// envelopes are the table of Parse and the seeds of its fuzz target. want is the
// code of the error, empty when the frame is a message; id is the id of the
// message or of the answer to the error.
var envelopes = []struct {
	name, in, want, id string
}{
	{"request", `{"jsonrpc":"2.0","id":1,"method":"m"}`, "", "1"},
	{"request with params", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2]}}`, "", "1"},
	{"members in any order", `{"params":{},"method":"m","id":1,"jsonrpc":"2.0"}`, "", "1"},
	{"spaces", " { \"jsonrpc\" : \"2.0\" , \"id\" : 1 , \"method\" : \"m\" } ", "", "1"},
	{"notification", `{"jsonrpc":"2.0","method":"m"}`, "", "null"},
	{"id 0", `{"jsonrpc":"2.0","id":0,"method":"m"}`, "", "0"},
	{"id negative", `{"jsonrpc":"2.0","id":-3,"method":"m"}`, "", "-3"},
	{"id largest", `{"jsonrpc":"2.0","id":9007199254740991,"method":"m"}`, "", "9007199254740991"},
	{"id smallest", `{"jsonrpc":"2.0","id":-9007199254740991,"method":"m"}`, "", "-9007199254740991"},
	{"id string", `{"jsonrpc":"2.0","id":"é1","method":"m"}`, "", `"é1"`},
	{"id string like a number", `{"jsonrpc":"2.0","id":"1","method":"m"}`, "", `"1"`},
	{"id 128 bytes", `{"jsonrpc":"2.0","id":"` + strings.Repeat("a", 128) + `","method":"m"}`, "", `"` + strings.Repeat("a", 128) + `"`},
	{"response", `{"jsonrpc":"2.0","id":1,"result":null}`, "", "1"},
	{"error response", `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"m","data":{"code":"x"}}}`, "", "1"},
	{"error response to nobody", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}`, "", "null"},

	{"id too large", `{"jsonrpc":"2.0","id":9007199254740992,"method":"m"}`, CodeParseError, "null"},
	{"id too small", `{"jsonrpc":"2.0","id":-9007199254740992,"method":"m"}`, CodeParseError, "null"},
	{"id huge", `{"jsonrpc":"2.0","id":18446744073709551617,"method":"m"}`, CodeParseError, "null"},
	{"id fraction", `{"jsonrpc":"2.0","id":1.5,"method":"m"}`, CodeInvalidRequest, "null"},
	{"id like a fraction", `{"jsonrpc":"2.0","id":1.0,"method":"m"}`, CodeInvalidRequest, "null"},
	{"id exponent", `{"jsonrpc":"2.0","id":1e0,"method":"m"}`, CodeInvalidRequest, "null"},
	{"id minus zero", `{"jsonrpc":"2.0","id":-0,"method":"m"}`, CodeInvalidRequest, "null"},
	{"id null", `{"jsonrpc":"2.0","id":null,"method":"m"}`, CodeInvalidRequest, "null"},
	{"id true", `{"jsonrpc":"2.0","id":true,"method":"m"}`, CodeInvalidRequest, "null"},
	{"id object", `{"jsonrpc":"2.0","id":{},"method":"m"}`, CodeInvalidRequest, "null"},
	{"id empty", `{"jsonrpc":"2.0","id":"","method":"m"}`, CodeInvalidRequest, "null"},
	{"id 129 bytes", `{"jsonrpc":"2.0","id":"` + strings.Repeat("a", 129) + `","method":"m"}`, CodeInvalidRequest, "null"},
	{"id twice", `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`, CodeParseError, "null"},
	{"id twice by escape", `{"jsonrpc":"2.0","id":1,"\u0069d":2,"method":"m"}`, CodeParseError, "null"},
	{"version missing", `{"id":1,"method":"m"}`, CodeInvalidRequest, "1"},
	{"version wrong", `{"jsonrpc":"1.0","id":1,"method":"m"}`, CodeInvalidRequest, "1"},
	{"version number", `{"jsonrpc":2.0,"id":1,"method":"m"}`, CodeInvalidRequest, "1"},
	{"version member in capitals", `{"JSONRPC":"2.0","id":1,"method":"m"}`, CodeInvalidRequest, "1"},
	{"method missing", `{"jsonrpc":"2.0","id":1}`, CodeInvalidRequest, "1"},
	{"method number", `{"jsonrpc":"2.0","id":1,"method":1}`, CodeInvalidRequest, "1"},
	{"method empty", `{"jsonrpc":"2.0","id":1,"method":""}`, CodeInvalidRequest, "1"},
	{"method too long", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("m", 129) + `"}`, CodeInvalidRequest, "1"},
	{"method capital", `{"jsonrpc":"2.0","id":1,"Method":"m"}`, CodeInvalidRequest, "1"},
	{"both cases", `{"jsonrpc":"2.0","id":1,"method":"m","Method":"n"}`, CodeInvalidRequest, "1"},
	{"unknown member", `{"jsonrpc":"2.0","id":1,"method":"m","meta":{}}`, CodeInvalidRequest, "1"},
	{"params array", `{"jsonrpc":"2.0","id":1,"method":"m","params":[]}`, CodeInvalidParams, "1"},
	{"params null", `{"jsonrpc":"2.0","id":1,"method":"m","params":null}`, CodeInvalidParams, "1"},
	{"params string", `{"jsonrpc":"2.0","id":"x","method":"m","params":"p"}`, CodeInvalidParams, `"x"`},
	{"duplicate inside", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"b":1,"b":1}}}`, CodeParseError, "null"},
	{"nul", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\u0000"}}`, CodeParseError, "null"},
	{"nul in a name", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"\u0000":1}}`, CodeParseError, "null"},
	{"escaped backslash is no nul", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\\u0000"}}`, "", "1"},
	{"invalid utf-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", CodeParseError, "null"},
	{"lone surrogate", `{"jsonrpc":"2.0","id":1,"method":"\ud800"}`, CodeParseError, "null"},
	{"number too large", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":9007199254740992}}`, CodeParseError, "null"},
	{"number infinite", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1e999}}`, CodeParseError, "null"},
	{"two values", `{"jsonrpc":"2.0","id":1,"method":"m"}{}`, CodeParseError, "null"},
	{"trailing comma", `{"jsonrpc":"2.0","id":1,"method":"m",}`, CodeParseError, "null"},
	{"cut off", `{"jsonrpc":"2.0","id":1,"meth`, CodeParseError, "null"},
	{"byte order mark", "\xef\xbb\xbf{}", CodeParseError, "null"},
	{"batch", `[{"jsonrpc":"2.0","id":1,"method":"m"}]`, CodeBatch, "null"},
	{"empty batch", ` []`, CodeBatch, "null"},
	{"a MiB of brackets", strings.Repeat("[", MaxBytes-1), CodeBatch, "null"},
	{"deep", `{"a":` + strings.Repeat("[", MaxBytes-6), CodeParseError, "null"},
	{"depth 64", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":` + strings.Repeat("[", 62) + strings.Repeat("]", 62) + `}}`, "", "1"},
	{"depth 65", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}}`, CodeParseError, "null"},
	{"banner", "Welcome to host!", CodeParseError, "null"},
	{"content length", "Content-Length: 42", CodeParseError, "null"},
	{"scalar", "1", CodeParseError, "null"},
	{"result and error", `{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}`, CodeInvalidRequest, "1"},
	{"method and result", `{"jsonrpc":"2.0","id":1,"method":"m","result":1}`, CodeInvalidRequest, "1"},
	{"result without id", `{"jsonrpc":"2.0","result":1}`, CodeInvalidRequest, "null"},
	{"error no object", `{"jsonrpc":"2.0","id":1,"error":"x"}`, CodeInvalidRequest, "1"},
	{"error without message", `{"jsonrpc":"2.0","id":1,"error":{"code":1}}`, CodeInvalidRequest, "1"},
	{"error with fraction", `{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":"m"}}`, CodeInvalidRequest, "1"},
	{"empty object", `{}`, CodeInvalidRequest, "null"},
}

func TestParse(t *testing.T) {
	for _, tt := range envelopes {
		m, err := Parse([]byte(tt.in))
		code, id := "", ID{}
		var bad *Error
		switch {
		case errors.As(err, &bad):
			code, id = bad.Code, bad.ID
		case err != nil:
			t.Errorf("%s: an untyped error: %v", tt.name, err)
		case m.Request != nil:
			id = m.Request.ID
		case m.Response != nil:
			id = m.Response.ID
		}
		if code != tt.want || id.String() != tt.id {
			t.Errorf("%s: got code %q, id %s (%v); want %q, %s", tt.name, code, id, err, tt.want, tt.id)
		}
		if err != nil && (m.Request != nil || m.Response != nil) {
			t.Errorf("%s: both an error and a message", tt.name)
		}
	}
}

func TestContentLengthIsExplained(t *testing.T) {
	_, err := Parse([]byte("content-length: 7"))
	if err == nil || !strings.Contains(err.Error(), "Content-Length headers are not used") {
		t.Errorf("got %v", err)
	}
}

func TestParseSharesNothing(t *testing.T) {
	line := []byte(`{"jsonrpc":"2.0","id":"abc","method":"m","params":{"a":1}}`)
	m, err := Parse(line)
	if err != nil {
		t.Fatal(err)
	}
	for i := range line {
		line[i] = 'Z'
	}
	if m.Request.ID != StringID("abc") || m.Request.Method != "m" || string(m.Request.Params) != `{"a":1}` {
		t.Errorf("the message changed with the buffer: %+v", m.Request)
	}
}

// FuzzParse: what parses is encoded again to a frame that parses to the same.
func FuzzParse(f *testing.F) {
	if len(envelopes) < 40 {
		f.Fatal("the seeds are gone")
	}
	for _, e := range envelopes {
		if len(e.in) < 4096 {
			f.Add([]byte(e.in))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := Parse(in)
		if err != nil {
			var bad *Error
			if !errors.As(err, &bad) || bad.Number == 0 || bad.Message == "" {
				t.Fatalf("%q: %v is no answer", in, err)
			}
			return
		}
		once := encode(m)
		again, err := Parse(once)
		if err != nil {
			t.Fatalf("%q was encoded to %q: %v", in, once, err)
		}
		if twice := encode(again); !bytes.Equal(once, twice) {
			t.Fatalf("%q, then %q", once, twice)
		}
		var std any
		if err := json.Unmarshal(once, &std); err != nil {
			t.Fatalf("encoding/json refuses %q: %v", once, err)
		}
	})
}

func encode(m Message) []byte {
	if m.Request != nil {
		return AppendRequest(nil, m.Request)
	}
	return AppendResponse(nil, m.Response)
}
