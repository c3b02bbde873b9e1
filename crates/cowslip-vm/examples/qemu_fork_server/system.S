/* A system for QEMU, loaded by Multiboot, to be fuzzed by fork_server.c: fills its memory from 16 MiB on, and looks at a test case
   at 0x300000. It crashes on one that begins with "cow".
   cc -m32 -nostdlib -static -Wl,-Ttext=0x100000 system.S -o system */
    .text
    .globl _start
    .align 4
    .long 0x1BADB002, 2, -(0x1BADB002 + 2)
_start:
    mov $0x200000, %esp
    mov 8(%ebx), %ecx          /* KiB from 1 MiB on */
    shr $2, %ecx
    sub $(15 << 8), %ecx
    mov %ecx, %ebp             /* pages from 16 MiB on */
    mov $0x1000000, %edi
fill:
    mov %edi, (%edi)
    add $0x1000, %edi
    dec %ecx
    jnz fill
    jmp start

    .org 0x100
start:
    mov $0x300000, %esi
    mov (%esi), %ecx
    add $4, %esi
    xor %ebx, %ebx             /* a sum over pages that the bytes choose */
    jecxz look
byte:
    imul $31, %ebx, %eax
    movzbl (%esi), %edx
    add %edx, %eax
    xor %edx, %edx
    div %ebp
    shl $12, %edx
    add 0x1000000(%edx), %ebx
    mov %ebx, 0x1000004(%edx)
    inc %esi
    loop byte
look:
    cmpb $'c', 0x300004
    jne done
    cmpb $'o', 0x300005
    jne done
    cmpb $'w', 0x300006
    jne done
    jmp crash

    .org 0x200
done:
    jmp done

    .org 0x300
crash:
    jmp crash
    .section .note.GNU-stack,"",@progbits
