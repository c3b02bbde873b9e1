// Work of many kinds that checks its own results, and says the same in each run: load ROUNDS.
package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

var (
	lock     sync.Mutex
	failures []string
)

func fail(format string, words ...any) {
	lock.Lock()
	defer lock.Unlock()
	failures = append(failures, fmt.Sprintf(format, words...))
}

func digest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

func serve(server net.Listener) {
	for {
		client, err := server.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			for lines := bufio.NewScanner(client); lines.Scan(); {
				fmt.Fprintln(client, digest(lines.Text()))
			}
		}()
	}
}

// Work without calls of functions: only SIGURG stops it for the collection of memory.
func spin(turns int) (sum uint64) {
	for i := 0; i < turns; i++ {
		sum = sum*6364136223846793005 + uint64(i)
	}
	return
}

func work(number, rounds int, address string) string {
	client, err := net.Dial("tcp", address)
	if err != nil {
		fail("thread %d: %v", number, err)
		return ""
	}
	defer client.Close()
	answers, all, objects := bufio.NewScanner(client), "", map[int]string{}
	for turn := 0; turn < rounds*20; turn++ {
		line := strings.Repeat(fmt.Sprintf("%d %d ", number, turn), 50)
		fmt.Fprintln(client, line)
		if !answers.Scan() || answers.Text() != digest(line) {
			fail("thread %d, turn %d: another answer", number, turn)
		}
		for i := 0; i < 2000; i++ {
			objects[i*turn%5000] = strings.Clone(line[i%100:])
		}
		all = digest(fmt.Sprint(all, answers.Text(), objects[turn%5000], spin(300_000)))
	}
	return all
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go serve(server)
	own, alarms, ticks := make(chan os.Signal, 10), make(chan os.Signal, 1000), 0
	signal.Notify(own, syscall.SIGUSR1)
	signal.Notify(alarms, syscall.SIGALRM)
	go func() {
		for range alarms {
			ticks++
		}
	}()
	every := syscall.Timeval{Usec: 1000}
	timer := [2]syscall.Timeval{every, every}
	syscall.Syscall(syscall.SYS_SETITIMER, 0, uintptr(unsafe.Pointer(&timer)), 0)
	results := make([]chan string, 4)
	for i := range results {
		results[i] = make(chan string)
		go func() { results[i] <- work(i, rounds, server.Addr().String()) }()
	}
	for round := 0; round < rounds; round++ {
		err := exec.Command("/bin/sh", "-c", fmt.Sprintf("kill -USR1 %d; exit 7", os.Getpid())).Run()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 7 {
			fail("round %d: %v", round, err)
		}
		select {
		case <-own:
		case <-time.After(30 * time.Second):
			fail("round %d: no signal", round)
		}
	}
	for _, result := range results {
		fmt.Println(<-result)
	}
	fmt.Println(len(own), ticks > rounds)
	if failures == nil {
		failures = []string{"right"}
	}
	fmt.Println(strings.Join(failures, "\n"))
}
