package rpc

import (
	"testing"
)

func TestOpenAndCall(t *testing.T) {
	s := newServer(t, Options{}, comp{methods: []Method{NewMethod("echo", "", MethodOptions{}, echo)}})
	p := dial(t, s, ConnOptions{})
	p.send(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"x"}}`)
	if a := p.recv(); a.code() != "not_initialized" || a.Error.Code != -32002 || a.id() != "1" {
		t.Fatalf("before initialize: %+v", a)
	}
	p.open()
	for _, id := range []string{"1", "-3", "0", `"a"`, "9007199254740991", "-9007199254740991"} {
		p.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"echo","params":{"text":"<x>&"}}`)
		a := p.recv()
		if a.Error != nil || string(a.Result) != "{\"text\":\"\\u003cx\\u003e\\u0026\"}" || a.id() != id {
			t.Errorf("id %s: answer id %s result %s error %+v", id, a.id(), a.Result, a.Error)
		}
	}
	for method, code := range map[string]string{"nope": "method_not_found", "initialize": "already_initialized",
		"relay": "method_not_found", "capabilities": "", "health": "", "rpc.discover": ""} {
		line := `{"jsonrpc":"2.0","id":7,"method":"` + method + `"}`
		if method == "initialize" {
			line = hello
		}
		p.send(line)
		if a := p.recv(); a.code() != code {
			t.Errorf("%s: got %q, want %q (%+v)", method, a.code(), code, a.Error)
		}
	}
	if err := p.hangUp(); err != nil {
		t.Errorf("ServeConn: %v", err)
	}
}
